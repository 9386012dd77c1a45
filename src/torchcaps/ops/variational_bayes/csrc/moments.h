// One E-step and the moments of the votes that each parent is then given, forward and backward: the passes of EM
// routing without its rule for what follows from them. Other mixtures of Gaussians are a few numbers of each parent
// away. A prior, a vote at 0, is counted; moments.py says all in formulas.
#pragma once

#include "backward.h"
#include "forward.h"

namespace torchcaps {
namespace {

// What is read and written of the parents, each [B, P, 16, J] but constant and mass, which are [B, P, J].
template <class T>
struct States {
  T *mean, *precision, *constant;            // of the E-step; null where each vote has the same share
  T *new_mean, *spread, *mass;               // Σ r V / mass, Σ r (V − mean)², prior + Σ r
};

inline Settings with_a_prior(double prior) {
  Settings settings = {};
  settings.mass_floor = prior;
  settings.ratio = 1;
  return settings;
}

template <class T, class Pose>
struct Moments {
  typedef Vec<T> V;
  static constexpr int L = kLanes<T>;

  const Forward<T, Pose> pass;
  const States<T> states;

  int64_t at(int64_t b, int64_t p, int64_t jv) const { return (b * pass.problem.P + p) * pass.problem.J + jv * L; }

  static V read(const T* numbers, int64_t at, int h, int64_t J, int n, T fill = 0) {
    return load_lanes<T>(numbers + (at / J * D + h) * J + at % J, n, fill);
  }

  // log shares as the E-step wants them: less their maximum, −∞ in lanes beyond the types.
  template <class Record>
  static void read_constants(const Problem<T, Pose>& problem, const T* constant, int64_t b, Record* records) {
    std::vector<double> logs(problem.P * problem.JV * L, -std::numeric_limits<double>::infinity());
    for (int64_t i = 0; i < problem.P * problem.JV; ++i) {
      const int64_t p = i / problem.JV, jv = i % problem.JV, from = (b * problem.P + p) * problem.J + jv * L;
      for (int l = 0; l < problem.width(jv); ++l) logs[i * L + l] = constant[from + l];
    }
    problem.subtract_max(logs, records);
  }

  void begin(int64_t b, Parent<V>* parents) const {
    const auto& problem = pass.problem;
    for (int64_t i = 0; i < problem.P * problem.JV; ++i) {
      const int64_t jv = i % problem.JV, from = at(b, i / problem.JV, jv);
      const int n = problem.width(jv);
      Parent<V>& parent = parents[i];
      for (int h = 0; h < D; ++h) {
        parent.mu[h] = Pose::kLinear ? V{} : read(states.mean, from, h, problem.J, n);
        parent.w[h] = read(states.precision, from, h, problem.J, n);
        parent.s1[h] = parent.s2[h] = parent.t1[h] = parent.t2[h] = V{};
      }
      parent.s0 = parent.t0 = V{};
    }
    read_constants(problem, states.constant, b, parents);
  }

  void end(int64_t b, const Parent<V>* parents) const {
    const auto& problem = pass.problem;
    for (int64_t i = 0; i < problem.P * problem.JV; ++i) {
      const int64_t jv = i % problem.JV, to = at(b, i / problem.JV, jv), J = problem.J;
      const int n = problem.width(jv);
      const Parent<V>& parent = parents[i];
      for (int h = 0; h < D; ++h) {
        const int64_t number = (to / J * D + h) * J + to % J;
        store_lanes<T>(states.new_mean + number, parent.mu[h], n);
        store_lanes<T>(states.spread + number, parent.s2[h] * parent.s0, n);
      }
      store_lanes<T>(states.mass + to, parent.s0, n);
    }
  }

  template <bool kOffset>
  void images(int64_t from, int64_t to) const {
    const auto& problem = pass.problem;
    const int64_t own = problem.n_lower(), first_size = own * (D + 2) / L + 1, shares = own / L + 1;
    Records<Parent<V>> records(problem.P * problem.JV);
    Buffer<T> numbers(first_size + 2 * shares);
    Parent<V>* parents = records.get();
    T *weighted = reinterpret_cast<T*>(numbers.get()), *greatest = weighted + first_size * L,
      *inverse = greatest + shares * L;
    for (int64_t b = from; b < to; ++b) {
      if (states.mean) {
        begin(b, parents);
        pass.template sums<kOffset>(b, parents, true);
        pass.template estimate<kOffset>(b, parents, greatest, inverse);
      } else {
        pass.template first_m_step<kOffset>(b, parents, weighted);
        if (pass.coupling) pass.start_coupling(b);
      }
      end(b, parents);
    }
  }

  bool run() const {
    return pass.over_images([&](int64_t from, int64_t to) {
      pass.problem.offset ? images<true>(from, to) : images<false>(from, to);
    });
  }
};

// The gradients of the moments, and those of what the E-step was given; laid out as the numbers themselves.
template <class T, class Pose>
struct MomentsBackward {
  typedef Vec<T> V;
  static constexpr int L = kLanes<T>;
  typedef Moments<T, Pose> Pass;

  const Backward<T, Pose> pass;
  const States<T> states, given, wanted;  // given: of new_mean, spread and mass; wanted: of the others

  void prepare(int64_t b, Slope<V>* slopes) const {
    const auto& problem = pass.problem;
    const int64_t J = problem.J;
    for (int64_t i = 0; i < problem.P * problem.JV; ++i) {
      const int64_t jv = i % problem.JV, from = (b * problem.P + i / problem.JV) * J + jv * L;
      const int n = problem.width(jv);
      const V mass = load_lanes<T>(states.mass + from, n, 1);
      Slope<V>& s = slopes[i];
      std::memset(static_cast<void*>(&s), 0, sizeof s);
      s.k = load_lanes<T>(given.mass + from, n);
      for (int h = 0; h < D; ++h) {
        const V mean = Pass::read(states.new_mean, from, h, J, n);
        s.g2[h] = Pass::read(given.spread, from, h, J, n);
        s.twice[h] = s.g2[h] + s.g2[h];
        // The mean moves with r, and the spread with the mean: by −2 Σ r (V − mean), which is −2 prior · mean.
        s.g1[h] = (Pass::read(given.new_mean, from, h, J, n) - s.twice[h] * (pass.problem.eps * mean)) / mass;
        s.mu[h] = mean;
        if (!states.mean) continue;
        s.mu[h] = Pose::kLinear ? V{} : Pass::read(states.mean, from, h, J, n);
        s.moved[h] = mean - s.mu[h];
        s.w[h] = Pass::read(states.precision, from, h, J, n);
      }
    }
    if (states.mean) Pass::read_constants(problem, states.constant, b, slopes);
  }

  void finish(int64_t b, const Slope<V>* slopes) const {
    const auto& problem = pass.problem;
    const int64_t J = problem.J;
    for (int64_t i = 0; i < problem.P * problem.JV; ++i) {
      const int64_t jv = i % problem.JV, to = (b * problem.P + i / problem.JV) * J + jv * L;
      const int n = problem.width(jv);
      const Slope<V>& s = slopes[i];
      for (int h = 0; h < D; ++h) {
        const int64_t number = (to / J * D + h) * J + to % J;
        store_lanes<T>(wanted.mean + number, Pose::kLinear ? V{} : s.s1[h] * s.w[h], n);
        store_lanes<T>(wanted.precision + number, Pose::kLinear ? s.s1[h] : T(-0.5) * s.s2[h], n);
      }
      store_lanes<T>(wanted.constant + to, s.s0, n);
    }
  }

  template <bool kOffset>
  void image(int64_t b, Slope<V>* slopes, V* d_weight) const {
    const int64_t children = pass.problem.n_lower();
    std::fill(pass.d_pose + b * children * D, pass.d_pose + (b + 1) * children * D, T(0));
    std::fill(pass.d_act + b * children, pass.d_act + (b + 1) * children, T(0));
    prepare(b, slopes);
    if (!states.mean) return pass.template first_m_step_backward<kOffset>(b, slopes, d_weight);
    pass.template m_step_backward<false, kOffset>(b, 0, slopes, d_weight);
    finish(b, slopes);
  }

  bool run(T* d_weight) const {
    std::vector<double> unused;
    return pass.over_images(d_weight, unused, [&](int64_t b, Slope<V>* slopes, V* sum, double*) {
      pass.problem.offset ? image<true>(b, slopes, sum) : image<false>(b, slopes, sum);
    });
  }
};

// 0, or 1 where memory ran out.
template <class T, class Pose>
int32_t moments(const Sizes& sizes, const T* pose, const T* act, const T* weight, const T* offset,
                const States<T>& states, T* coupling, double prior) {
  try {
    const Moments<T, Pose> op{{{sizes, with_a_prior(prior), nullptr, pose, act, weight, nullptr, nullptr, offset},
                               nullptr, nullptr, nullptr, coupling},
                              states};
    return op.run() ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

template <class T, class Pose>
int32_t moments_backward(const Sizes& sizes, const T* pose, const T* act, const T* weight, const T* offset,
                         const States<T>& states, const States<T>& given, const States<T>& wanted,
                         const T* d_coupling, T* d_pose, T* d_act, T* d_weight, double prior) {
  try {
    const MomentsBackward<T, Pose> op{{{sizes, with_a_prior(prior), nullptr, pose, act, weight, nullptr, nullptr, offset},
                                       nullptr, nullptr, nullptr, d_coupling, d_pose, d_act},
                                      states, given, wanted};
    return op.run(d_weight) ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace
}  // namespace torchcaps
