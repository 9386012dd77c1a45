// EM routing forward: the first M-step; then, in one walk over the children, an E-step and the next M-step's sums.
//
// Sums of squares are centred on the mean of the iteration before. Where the mean moved so far that the variance
// would cancel, that parent's variance is summed again around the new mean.
#pragma once

#include "parallel.h"
#include "votes.h"

namespace torchcaps {
namespace {

template <class V>
struct Parent {  // L parents of one place
  V mu[D], w[D];           // the state that the E-step sees: mean, 1/σ²
  V s1[D], s2[D];          // Σ r (V − μ), Σ r (V − μ)²
  V t1[D], t2[D], t0;      // the same, of the runs before
  V s0, c;                 // Σ r; log a − ½ Σ log σ², less the maximum
};

template <class T, class Pose>
struct Forward {
  typedef Vec<T> V;
  static constexpr int L = kLanes<T>;

  const Problem<T, Pose> problem;  // behind a reference its members would be loaded again and again
  T *out_pose, *out_act, *saved, *coupling;  // the last two may be null

  // The mean and the variance of every parent, from sums around a guess of the mean: what offsets add to it.
  template <bool kOffset>
  void first_m_step(int64_t b, Parent<V>* parents, T* weighted) const {
    const int64_t rows = problem.C * problem.K, JV = problem.JV, children = problem.n_lower();
    const T* poses = problem.pose + b * children * D;
    T *r = weighted + children * D, *root = r + children;  // r [children], √r, and √r·M [children, 16]
    std::vector<Seen> seen(problem.most_seen);
    for (int64_t y = 0; y < problem.H; ++y)
      for (int64_t x = 0; x < problem.W; ++x) {
        const int n_seen = problem.seen_by(y, x, seen.data());
        const T start = n_seen ? problem.start(n_seen) : T(0);
        for (int64_t c = 0; c < problem.C; ++c) {
          const int64_t child = problem.child(0, c, y, x);
          const T x = start * problem.act[b * children + child], x_root = std::sqrt(x);
          r[child] = x, root[child] = x_root;
          for (int h = 0; h < D; h += L)
            store<T>(weighted + child * D + h, x_root * load<T>(poses + child * D + h));
        }
      }
    for (int64_t p = 0; p < problem.P; ++p) {
      double total = 0, shift[D] = {};
      for (int64_t i = 0; i < rows; ++i) {
        const T ri = r[problem.seen_child(i, p)];
        total += ri;
        if (kOffset)
          for (int h = 0; h < D; ++h) shift[h] += double(ri) * problem.offset[i * D + h];
      }
      const T mass = T(total) + problem.eps;
      for (int64_t jv = 0; jv < JV; ++jv) {
        Parent<V>& parent = parents[p * JV + jv];
        parent.s0 = splat<T>(mass);
        for (int h = 0; h < D; ++h) {
          parent.mu[h] = splat<T>(T(shift[h]) / mass);
          parent.s1[h] = parent.s2[h] = V{};
        }
      }
    }
    for (int64_t jv = 0; jv < JV; ++jv)
      for (int64_t from = 0; from < rows; from += Pose::kRows)
        for (int64_t p = 0; p < problem.P; ++p) {
          Parent<V>& parent = parents[p * JV + jv];
          const int64_t to = std::min(rows, from + Pose::kRows);
          if (kOffset) {
            first_sums<true>(poses, r, p, jv, from, to, parent.mu, parent.s1, parent.s2);
            continue;
          }
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c) {
            V run[4] = {}, rest[4] = {};
            for (int64_t i = from; i < to; ++i) {
              const int64_t child = problem.seen_child(i, p);
              V v[4];
              Pose::template quarter<T>(weighted + child * D, problem.weights(i, jv), c, [](int) { return V{}; }, v);
#pragma GCC unroll 4
              for (int q = 0; q < 4; ++q) {
                rest[q] += root[child] * v[q];
                run[q] += v[q] * v[q];
              }
            }
#pragma GCC unroll 4
            for (int q = 0; q < 4; ++q) parent.s1[4 * q + c] += rest[q], parent.s2[4 * q + c] += run[q];
          }
        }
    for (int64_t p = 0; p < problem.P; ++p)
      for (int64_t jv = 0; jv < JV; ++jv) {
        Parent<V>& parent = parents[p * JV + jv];
        V mean[D];
        bool again = false;
        for (int h = 0; h < D; ++h) {
          const V all = parent.s0 - problem.eps, s1 = parent.s1[h], s2 = parent.s2[h];  // all: Σ r
          mean[h] = (1 - problem.damping) * (s1 + all * parent.mu[h]) / parent.s0;
          const V amiss = mean[h] - parent.mu[h], total = s2 + amiss * (amiss * all - T(2) * s1);
          const auto lost = s2 > T(4) * (total + problem.floor * parent.s0);
          for (int l = 0; l < L; ++l) again |= lost[l] != 0;
        }
        if (again) {  // around the mean itself, which says how far rounding in the first, long sum left it amiss, too
          for (int h = 0; h < D; ++h) parent.mu[h] = mean[h], parent.s1[h] = parent.s2[h] = V{};
          first_sums<kOffset>(poses, r, p, jv, 0, rows, parent.mu, parent.s1, parent.s2);
        }
        for (int h = 0; h < D; ++h) {
          const V all = parent.s0 - problem.eps, s1 = parent.s1[h], guess = parent.mu[h];
          parent.mu[h] += (1 - problem.damping) * (s1 - problem.eps * guess) / parent.s0 - problem.damping * guess;
          const V amiss = parent.mu[h] - guess;  // as rounded
          parent.t1[h] = parent.mu[h];
          parent.t2[h] = (s1 - amiss * all) / parent.s0;
          parent.s2[h] = (parent.s2[h] + amiss * (amiss * all - T(2) * s1)) / parent.s0 + problem.floor;
        }
      }
  }

  // s1 += Σ r (V − μ), s2 += Σ r (V − μ)² over some rows of what a place sees.
  template <bool kOffset>
  void first_sums(const T* poses, const T* r, int64_t p, int64_t jv, int64_t from, int64_t to, const V* mu, V* s1,
                  V* s2) const {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      V run[4] = {}, rest[4] = {};
      for (int64_t i = from; i < to; ++i) {
        const int64_t child = problem.seen_child(i, p);
        V v[4];
        quarter<T, Pose, kOffset>(poses + child * D, problem.weights(i, jv), mu, problem.offset + i * D, c, v);
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {
          const V rv = r[child] * v[q];
          rest[q] += rv;
          run[q] += rv * v[q];
        }
      }
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) s1[4 * q + c] += rest[q], s2[4 * q + c] += run[q];
    }
  }

  // Makes the votes of the types of children from … to − 1, and shares them: the E-step. Calls
  // body(block, its first type, first vector of parents, votes, R, what the softmax was made with) block by block.
  template <bool kOffset, class Body>
  void over_shares(int64_t b, const Parent<V>* parents, int64_t from, int64_t to, const Body& body) const {
    const auto& walk = problem.walk;
    const int64_t JV = problem.JV, part = problem.part();
    Buffer<T> scratch(walk.n_slots() * part * (D + 1) + 2 * walk.n_children());
    V *e = scratch.get(), *r = e + walk.n_slots() * part * D, *top = r + walk.n_slots() * part,
      *inv = top + walk.n_children();
    for (int64_t first = 0; first < JV; first += part)
      walk(from, to, [&](const Block& block, int64_t type) {
        const int64_t child0 = type * problem.H * problem.W, row0 = type * problem.K;
        const T* poses = problem.pose + (b * problem.n_lower() + child0) * D;
        for (const auto& run : block.runs)
          for (int64_t k = 0; k < part; ++k)
            for (const Visit& visit : run) {
              const int64_t at = visit.slot * part + k, jv = first + k;
              const Parent<V>& parent = parents[place_of<Pose>(run, visit) * JV + jv];
              r[at] = parent.c + differences<T, Pose, kOffset>(
                  poses + int64_t(visit.child) * D, problem.weights(row0 + visit.row, jv), parent.mu,
                  problem.offset + (row0 + visit.row) * D, parent.w, e + at * D);
            }
        softmax<T>(r, block, part, problem.compete_positions, top, inv);
        body(block, type, first, e, r, top, inv);
      });
  }

  // E-step with the parents' states and the M-step's sums, in one pass.
  template <bool kOffset>
  void sums(int64_t b, Parent<V>* parents, bool last) const {
    const int64_t JV = problem.JV, part = problem.part();
    for (int64_t from = 0; from < problem.C; from += kRun) {
      const auto add = [&](const Block& block, int64_t type, int64_t first, const V* e, V* r, const V*, const V*) {
        const T* acts = problem.act + b * problem.n_lower() + type * problem.H * problem.W;
        if (last && coupling) store_coupling(b, block, type * problem.K, first, part, r);
        for (const Block::Child& child : block.children)
          for (int64_t k = 0; k < child.n_seen * part; ++k) r[child.slot * part + k] *= acts[child.child];
        add_moments<Pose>(block, part, e, r, parents + first, JV);
      };
      over_shares<kOffset>(b, parents, from, std::min(problem.C, from + kRun), add);
      if (problem.C <= kRun) return;
      for (int64_t i = 0; i < problem.P * JV; ++i) {
        Parent<V>& parent = parents[i];
        parent.t0 += parent.s0, parent.s0 = V{};
        for (int h = 0; h < D; ++h) {
          parent.t1[h] += parent.s1[h], parent.s1[h] = V{};
          parent.t2[h] += parent.s2[h], parent.s2[h] = V{};
        }
      }
    }
  }

  // What the softmax of every child was made with: the greatest logit, and the inverse of the sum.
  template <bool kOffset>
  void find_shares(int64_t b, const Parent<V>* parents, T* greatest, T* inverse) const {
    const auto keep = [&](const Block& block, int64_t type, int64_t first, const V*, V*, const V* top, const V* inv) {
      for (int64_t i = 0; i < block.n(); ++i) {
        const int64_t child = type * problem.H * problem.W + block.children[i].child;
        if (problem.compete_positions) {
          const int64_t at = (child * problem.JV + first) * L;
          store<T>(greatest + at, top[i]), store<T>(inverse + at, inv[i]);
        } else {
          greatest[child] = top[i][0], inverse[child] = inv[i][0];
        }
      }
    };
    over_shares<kOffset>(b, parents, 0, problem.C, keep);
  }

  // Σ r d² around the new mean, d = V − μ − moved, without cancelling.
  template <bool kOffset>
  void squares(int64_t b, int64_t p, int64_t jv, const Parent<V>& parent, const V* moved, const T* greatest,
               const T* inverse, V* total) const {
    const int64_t JV = problem.JV;
    for (int h = 0; h < D; ++h) total[h] = V{};
    for (int64_t row = 0; row < problem.C * problem.K; ++row) {
      const int64_t own = problem.seen_child(row, p), child = b * problem.n_lower() + own;
      const V top = problem.compete_positions ? load<T>(greatest + (own * JV + jv) * L) : splat<T>(greatest[own]);
      const V inv = problem.compete_positions ? load<T>(inverse + (own * JV + jv) * L) : splat<T>(inverse[own]);
      V e[D];
      const V logit =
          parent.c + differences<T, Pose, kOffset>(problem.pose + child * D, problem.weights(row, jv), parent.mu,
                                                   problem.offset + row * D, parent.w, e);
      const V r = problem.act[child] * (exp_of_negative<T>(logit - top) * inv);
      for (int h = 0; h < D; ++h) {
        const V d = e[h] - moved[h];
        total[h] += r * d * d;
      }
    }
  }

  // How far the mean moves, and Σ r d² around the new one; whether it cancels, which then has to be summed again.
  bool moments(const Parent<V>& parent, V* moved, V* total) const {
    const V mass = parent.s0 + problem.eps, inv = T(1) / mass;
    bool again = false;
    for (int h = 0; h < D; ++h) {
      const V s1 = parent.s1[h] + parent.t1[h], s2 = parent.s2[h] + parent.t2[h];
      moved[h] = (1 - problem.damping) * ((s1 - problem.eps * parent.mu[h]) * inv);
      total[h] = s2 + moved[h] * (moved[h] * parent.s0 - T(2) * s1);
      const auto lost = s2 > T(4) * (total[h] + problem.floor * mass);
      for (int l = 0; l < L; ++l) again |= lost[l] != 0;
    }
    return again && !Pose::kLinear;
  }

  // The new mean and variance, in mu and s2; the mass in s0; how far the mean moved in t1.
  template <bool kOffset>
  void estimate(int64_t b, Parent<V>* parents, T* greatest, T* inverse) const {
    V moved[D], total[D];
    bool any = false;
    for (int64_t i = 0; i < problem.P * problem.JV; ++i) {
      parents[i].s0 += parents[i].t0;
      any |= moments(parents[i], moved, total);
    }
    if (any) find_shares<kOffset>(b, parents, greatest, inverse);
    for (int64_t i = 0; i < problem.P * problem.JV; ++i) {
      Parent<V>& parent = parents[i];
      if (moments(parent, moved, total))
        squares<kOffset>(b, i / problem.JV, i % problem.JV, parent, moved, greatest, inverse, total);
      const V mass = parent.s0 + problem.eps, inv = T(1) / mass;
      for (int h = 0; h < D; ++h) {
        parent.mu[h] += moved[h];
        parent.s2[h] = total[h] * inv + problem.floor;
        parent.t1[h] = moved[h];
      }
      parent.s0 = mass;
      parent.t0 = V{};
    }
  }

  // The activations; keeps the states, and makes ready for the E-step.
  void finish(int64_t b, int64_t t, Parent<V>* parents, std::vector<double>& log_ap) const {
    const double lambda = problem.lambda[t];
    const bool last = t == problem.n_iters - 1;
    for (int64_t p = 0; p < problem.P; ++p)
      for (int64_t jv = 0; jv < problem.JV; ++jv) {
        const int64_t i = p * problem.JV + jv;
        Parent<V>& parent = parents[i];
        const int n = problem.width(jv);
        double logs[L];
        sum_of_logs<T>(parent.s2, logs);
        V logits = {};
        for (int l = 0; l < n; ++l) {
          const int64_t j = jv * L + l, at = (b * problem.J + j) * problem.P + p;
          const double logit = lambda * (problem.scale_a * problem.beta_a[j] - parent.s0[l] * problem.cost(j, logs[l]));
          logits[l] = T(logit);
          if (last)
            out_act[at] = T(sigmoid(logit));
          else
            log_ap[i * L + l] = log_sigmoid(logit) - 0.5 * logs[l];
        }
        if (last)
          from_lanes<T>(parent.mu, out_pose + ((b * problem.J + jv * L) * problem.P + p) * D, problem.P * D, n, D);
        if (saved) {
          T* all = saved + (b * problem.P + p) * problem.kept() * problem.J + jv * L;
          T* to = all + t * kState * problem.J;
          for (int h = 0; h < D; ++h) {
            store_lanes<T>(to + h * problem.J, parent.t1[h], n);
            store_lanes<T>(to + (kVariance + h) * problem.J, parent.s2[h], n);
            if (!t) store_lanes<T>(all + (problem.n_iters * kState + h) * problem.J, parent.t2[h], n);
          }
          store_lanes<T>(to + kLogit * problem.J, logits, n);
          store_lanes<T>(to + kMass * problem.J, parent.s0, n);
        }
        if (!last) ready(parent);
      }
    if (!last) problem.subtract_max(log_ap, parents);
  }

  // 1/σ², from σ² in s2; sums at 0.
  static void ready(Parent<V>& parent) {
    for (int h = 0; h < D; ++h) {
      parent.w[h] = T(1) / parent.s2[h];
      parent.s1[h] = parent.s2[h] = parent.t1[h] = parent.t2[h] = V{};
    }
    parent.s0 = V{};
  }

  template <bool kOffset>
  void images(int64_t from, int64_t to) const {
    const int64_t own = problem.n_lower(), first_size = own * (D + 2) / L + 1;
    const int64_t shares = problem.compete_positions ? own * problem.JV : own / L + 1;
    Records<Parent<V>> records(problem.P * problem.JV);
    Buffer<T> numbers(first_size + 2 * shares);
    Parent<V>* parents = records.get();
    T *weighted = reinterpret_cast<T*>(numbers.get()), *greatest = weighted + first_size * L,
      *inverse = greatest + shares * L;
    std::vector<double> log_ap(problem.P * problem.JV * L, -std::numeric_limits<double>::infinity());
    for (int64_t b = from; b < to; ++b) {
      first_m_step<kOffset>(b, parents, weighted);
      finish(b, 0, parents, log_ap);
      for (int64_t t = 1; t < problem.n_iters; ++t) {
        sums<kOffset>(b, parents, t == problem.n_iters - 1);
        estimate<kOffset>(b, parents, greatest, inverse);
        finish(b, t, parents, log_ap);
      }
      if (coupling && problem.n_iters == 1) start_coupling(b);
    }
  }

  void store_coupling(int64_t b, const Block& block, int64_t row0, int64_t first, int64_t part, const V* r) const {
    for (const auto& run : block.runs)
      for (const Visit& visit : run)
        for (int64_t k = 0; k < part; ++k)
          store_lanes<T>(problem.of_coupling(coupling, b, visit.place, row0 + visit.row) + (first + k) * L,
                         r[visit.slot * part + k], problem.width(first + k));
  }

  void start_coupling(int64_t b) const {
    std::vector<Seen> seen(problem.most_seen);
    for (int64_t c = 0; c < problem.C; ++c)
      for (int64_t y = 0; y < problem.H; ++y)
        for (int64_t x = 0; x < problem.W; ++x) {
          const int n_seen = problem.seen_by(y, x, seen.data());
          for (int s = 0; s < n_seen; ++s) {
            T* to = problem.of_coupling(coupling, b, seen[s].place, c * problem.K + seen[s].kernel);
            std::fill(to, to + problem.J, problem.start(n_seen));
          }
        }
  }

  // Calls images(from, to) for all images, cut into tasks.
  template <class Images>
  bool over_images(const Images& images) const {
    const int64_t tasks = std::min(problem.B, std::max<int64_t>(1, 4 * problem.n_threads));
    return parallel(tasks, problem.n_threads, [&](int64_t task) {
      const WithoutSubnormals faster;
      images(task * problem.B / tasks, (task + 1) * problem.B / tasks);
    });
  }

  bool run() const {
    return over_images([&](int64_t from, int64_t to) {
      problem.offset ? images<true>(from, to) : images<false>(from, to);
    });
  }
};

// 0, or 1 where memory ran out.
template <class T, class Pose>
int32_t forward(const Sizes& sizes, const Settings& settings, const double* lambda, const T* pose, const T* act,
                const T* weight, const T* beta_u, const T* beta_a, const T* offset, T* out_pose, T* out_act, T* saved,
                T* coupling) {
  try {
    const Forward<T, Pose> op{{sizes, settings, lambda, pose, act, weight, beta_u, beta_a, offset},
                              out_pose, out_act, saved, coupling};
    return op.run() ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace
}  // namespace torchcaps
