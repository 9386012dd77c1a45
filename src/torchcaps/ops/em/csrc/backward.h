// EM routing backward, through every E-step and M-step: what operator.py says in formulas.
#pragma once

#include "parallel.h"
#include "votes.h"

namespace torchcaps {
namespace {

template <class V>
struct Slope {  // L parents of one place, on the way back through one iteration
  V mu[D], w[D], moved[D];     // what the E-step saw, and how far the M-step moved the mean
  V g1[D], g2[D], twice[D];    // dr = k + Σ d (g1 + g2 d), dV = r (g1 + 2 g2 d), with d = V − μ
  V s1[D], s2[D];              // Σ x (V − μ), Σ x (V − μ)², x the gradient of the E-step's logits
  V dmu[D], dvar[D];           // the gradients that come from the iterations after
  V s0, c, k, dlogit;
};

template <class T, class Pose>
struct Backward {
  typedef Vec<T> V;
  static constexpr int L = kLanes<T>;

  const Problem<T, Pose> problem;  // behind a reference its members would be loaded again and again
  const T *saved, *grad_pose, *grad_act, *d_coupling;  // the last may be null
  T *d_pose, *d_act;

  const T* state(int64_t b, int64_t t, int64_t p, int64_t jv) const {
    return saved + ((b * problem.P + p) * problem.kept() + t * kState) * problem.J + jv * L;
  }

  // From the gradients of μ, σ² and logit of iteration t to what a visit of the children needs.
  void prepare(int64_t b, int64_t t, Slope<V>* slopes, double* d_beta) const {
    const double lambda = problem.lambda[t];
    const T keep = 1 - problem.damping, lag = problem.damping / keep;
    const T per_log = T(-lambda * problem.ratio * problem.scale_variance * 0.5);
    const int64_t J = problem.J;
    std::vector<double> log_ap(problem.P * problem.JV * L, -std::numeric_limits<double>::infinity());
    for (int64_t i = 0; i < problem.P * problem.JV; ++i) {
      const int64_t p = i / problem.JV, jv = i % problem.JV;
      const int n = problem.width(jv);
      Slope<V>& s = slopes[i];
      const T* now = state(b, t, p, jv);
      const V mass = load_lanes<T>(now + kMass * J, n, 1);
      V var[D], k = {};
      double logs[L];
      for (int h = 0; h < D; ++h) var[h] = load_lanes<T>(now + (kVariance + h) * J, n, 1);
      sum_of_logs<T>(var, logs);
      for (int l = 0; l < n; ++l) {
        const int64_t j = jv * L + l;
        const double dlogit = lambda * s.dlogit[l];
        d_beta[j] -= dlogit * problem.ratio * problem.scale_u * D * mass[l];
        d_beta[J + j] += dlogit * problem.scale_a;
        k[l] = T(-dlogit * problem.cost(j, logs[l]));
      }
      for (int h = 0; h < D; ++h) {
        V mu = {};  // by the same sums as in the forward pass
        for (int64_t before = 0; before < t; ++before) mu += load_lanes<T>(state(b, before, p, jv) + h * J, n);
        const V moved = load_lanes<T>(now + h * J, n);
        s.mu[h] = t ? mu : moved;
        mu += moved;
        const V pull = problem.eps * mu / mass;
        const V left = t ? lag * moved + pull : load_lanes<T>(now + (problem.n_iters * kState + h) * J, n);
        const V apart = left - pull;  // mean − μ
        const V g2 = s.dvar[h] / mass + per_log * s.dlogit / var[h];
        const V dmu = s.dmu[h] - T(2) * g2 * mass * left;
        const V g1 = keep * dmu / mass;
        k -= g2 * (var[h] - problem.floor) + g1 * apart;
        s.dmu[h] = problem.damping * dmu;
        s.g1[h] = g1, s.g2[h] = g2, s.twice[h] = g2 + g2;
        s.moved[h] = moved;
        s.s1[h] = s.s2[h] = V{};
      }
      s.k = k;
      s.s0 = V{};
      if (!t) continue;
      const T* before = state(b, t - 1, p, jv);
      for (int h = 0; h < D; ++h) {
        var[h] = load_lanes<T>(before + (kVariance + h) * J, n, 1);
        s.w[h] = T(1) / var[h];
      }
      sum_of_logs<T>(var, logs);
      for (int l = 0; l < n; ++l) log_ap[i * L + l] = log_sigmoid(before[kLogit * J + l]) - 0.5 * logs[l];
    }
    if (t) problem.subtract_max(log_ap, slopes);
  }

  // The gradients of the states that the E-step before iteration t saw.
  void e_step_backward(int64_t b, int64_t t, Slope<V>* slopes) const {
    for (int64_t p = 0; p < problem.P; ++p)
      for (int64_t jv = 0; jv < problem.JV; ++jv) {
        Slope<V>& s = slopes[p * problem.JV + jv];
        const V logit = load_lanes<T>(state(b, t - 1, p, jv) + kLogit * problem.J, problem.width(jv));
        for (int l = 0; l < L; ++l) s.dlogit[l] = T(s.s0[l] * sigmoid(-logit[l]));
        for (int h = 0; h < D; ++h) {
          s.dmu[h] += s.s1[h] * s.w[h];
          s.dvar[h] = T(0.5) * s.w[h] * (s.s2[h] * s.w[h] - s.s0);
        }
      }
  }

  // Children in the first M-step: R is a constant.
  template <bool kOffset>
  void first_m_step_backward(int64_t b, Slope<V>* slopes, V* d_weight) const {
    const auto& walk = problem.walk;
    Buffer<T> scratch(walk.n_children() * (D + 4));
    V *dm = scratch.get(), *dr_all = dm + walk.n_children() * D;
    std::vector<T> r_all(walk.n_children());
    walk(0, problem.C, [&](const Block& block, int64_t type) {
      const int64_t row0 = type * problem.K, base = b * problem.n_lower() + type * problem.H * problem.W;
      std::fill(dm, dm + block.n() * D, V{});
      std::fill(dr_all, dr_all + block.n() * 4, V{});
      for (int64_t i = 0; i < block.n(); ++i)
        r_all[i] = problem.start(block.children[i].n_seen) * problem.act[base + block.children[i].child];
      for (const auto& run : block.runs)
        for (int64_t jv = 0; jv < problem.JV; ++jv)
          for (const Visit& visit : run) {
            const Slope<V>& slope = slopes[place_of<Pose>(run, visit) * problem.JV + jv];
            const T* m = problem.pose + (base + visit.child) * D;
            const T ra = r_all[visit.i];
            const V* weight = problem.weights(row0 + visit.row, jv);
            V *dr = dr_all + visit.i * 4, dv[D];
            dr[0] += slope.k;
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
              V v[4];
              quarter<T, Pose, kOffset>(m, weight, slope.mu, problem.offset + (row0 + visit.row) * D, k, v);
#pragma GCC unroll 4
              for (int q = 0; q < 4; ++q) {
                const int h = 4 * q + k;
                const V u = slope.g1[h] + slope.g2[h] * v[q];
                dr[q] += u * v[q];
                dv[h] = ra * (slope.g1[h] + slope.twice[h] * v[q]);
              }
            }
            Pose::template backward<T>(m, weight, dv, dm + visit.i * D, d_weight + problem.at(row0 + visit.row, jv));
          }
      for (int64_t i = 0; i < block.n(); ++i) {
        const Block::Child& child = block.children[i];
        const V* dr = dr_all + i * 4;
        add_lane_sums<T>(dm + i * D, d_pose + (base + child.child) * D);
        d_act[base + child.child] +=
            problem.start(child.n_seen) * sum_lanes<T>((dr[0] + dr[1]) + (dr[2] + dr[3]))[0];
      }
    });
  }

  // Children in a later M-step and, unless the gradient stops there, in the E-step before it.
  template <bool kStop, bool kOffset>
  void m_step_backward(int64_t b, int64_t t, Slope<V>* slopes, V* d_weight) const {
    const auto& walk = problem.walk;
    const int64_t JV = problem.JV, part = problem.part(), n_votes = walk.n_slots() * part;
    Buffer<T> scratch(n_votes * (D + 2) + walk.n_children() * (D + 2));
    V *e = scratch.get(), *r = e + n_votes * D, *dr = r + n_votes, *dm = dr + n_votes,
      *unused = dm + walk.n_children() * D;
    for (int64_t first = 0; first < JV; first += part)
      walk(0, problem.C, [&](const Block& block, int64_t type) {
        const int64_t row0 = type * problem.K, base = b * problem.n_lower() + type * problem.H * problem.W;
        for (const auto& run : block.runs)
          for (int64_t jv = first; jv < first + part; ++jv)
            for (const Visit& visit : run) {
              const Slope<V>& slope = slopes[place_of<Pose>(run, visit) * JV + jv];
              const int64_t at = visit.slot * part + jv - first;
              V q[4] = {}, a[4] = {};
#pragma GCC unroll 4
              for (int k = 0; k < 4; ++k) {
                V v[4];
                quarter<T, Pose, kOffset>(problem.pose + (base + visit.child) * D,
                                          problem.weights(row0 + visit.row, jv), slope.mu,
                                          problem.offset + (row0 + visit.row) * D, k, v);
#pragma GCC unroll 4
                for (int l = 0; l < 4; ++l) {
                  const int h = 4 * l + k;
                  const V d = v[l] - slope.moved[h];
                  e[at * D + h] = v[l];
                  q[l] += (Pose::kLinear ? v[l] : v[l] * v[l]) * slope.w[h];
                  a[l] += d * (slope.g1[h] + slope.g2[h] * d);
                }
              }
              r[at] = slope.c + logit_of<T, Pose>(q);
              dr[at] = slope.k + ((a[0] + a[1]) + (a[2] + a[3]));
            }
        softmax<T>(r, block, part, problem.compete_positions, unused, unused + walk.n_children());
        activation_backward(base, block, part, r, dr);
        if (!kStop && d_coupling && t == problem.n_iters - 1) add_coupling(b, block, row0, first, part, dr);
        if (!kStop) softmax_backward(block, part, r, dr);
        for (const Block::Child& child : block.children)  // from R to r
          for (int64_t k = 0; k < child.n_seen * part; ++k) r[child.slot * part + k] *= problem.act[base + child.child];
        std::fill(dm, dm + block.n() * D, V{});
        for (const auto& run : block.runs)
          for (int64_t jv = first; jv < first + part; ++jv)
            for (const Visit& visit : run) {
              const Slope<V>& slope = slopes[place_of<Pose>(run, visit) * JV + jv];
              const int64_t at = visit.slot * part + jv - first;
              const V *d = e + at * D, ra = r[at], xa = dr[at];
              V dv[D];
#pragma GCC unroll 16
              for (int h = 0; h < D; ++h) {
                dv[h] = ra * (slope.g1[h] + slope.twice[h] * (d[h] - slope.moved[h]));
                if (!kStop) dv[h] -= (Pose::kLinear ? -xa : xa * d[h]) * slope.w[h];
              }
              Pose::template backward<T>(problem.pose + (base + visit.child) * D,
                                         problem.weights(row0 + visit.row, jv), dv,
                                         dm + visit.i * D, d_weight + problem.at(row0 + visit.row, jv));
            }
        for (int64_t i = 0; i < block.n(); ++i)
          add_lane_sums<T>(dm + i * D, d_pose + (base + block.children[i].child) * D);
        if (!kStop) add_moments<Pose>(block, part, e, dr, slopes + first, JV);
      });
  }

  // From dr, the gradient of r = R a, to those of a and of R, in place.
  void activation_backward(int64_t base, const Block& block, int64_t part, const V* share, V* dr) const {
    for (const Block::Child& child : block.children) {
      const T a = problem.act[base + child.child];
      V all = {};
      for (int64_t k = child.slot * part; k < (child.slot + child.n_seen) * part; ++k) {
        all += share[k] * dr[k];
        dr[k] *= a;
      }
      d_act[base + child.child] += sum_lanes<T>(all)[0];
    }
  }

  void add_coupling(int64_t b, const Block& block, int64_t row0, int64_t first, int64_t part, V* dr) const {
    for (const auto& run : block.runs)
      for (const Visit& visit : run)
        for (int64_t k = 0; k < part; ++k)
          dr[visit.slot * part + k] +=
              load_lanes<T>(problem.of_coupling(d_coupling, b, visit.place, row0 + visit.row) + (first + k) * L,
                            problem.width(first + k));
  }

  // From the gradient of R to that of its logits, in place.
  void softmax_backward(const Block& block, int64_t part, const V* share, V* dr) const {
    for (const Block::Child& child : block.children) {
      const int64_t from = child.slot * part, to = (child.slot + child.n_seen) * part;
      V mean = {};
      for (int64_t k = from; k < to; ++k) mean += share[k] * dr[k];
      if (!problem.compete_positions) mean = sum_lanes<T>(mean);
      for (int64_t k = from; k < to; ++k) dr[k] = share[k] * (dr[k] - mean);
    }
  }

  template <bool kOffset>
  void image(int64_t b, Slope<V>* slopes, V* d_weight, double* d_beta) const {
    const int64_t children = problem.n_lower(), final = problem.n_iters - 1;
    std::fill(d_pose + b * children * D, d_pose + (b + 1) * children * D, T(0));
    std::fill(d_act + b * children, d_act + (b + 1) * children, T(0));
    for (int64_t p = 0; p < problem.P; ++p)
      for (int64_t jv = 0; jv < problem.JV; ++jv) {
        Slope<V>& s = slopes[p * problem.JV + jv];
        std::memset(static_cast<void*>(&s), 0, sizeof s);
        const V logit = load_lanes<T>(state(b, final, p, jv) + kLogit * problem.J, problem.width(jv));
        const int64_t at = (b * problem.J + jv * L) * problem.P + p;  // of the first type, others' are P further on
        to_lanes<T>(grad_pose + at * D, problem.P * D, problem.width(jv), D, s.dmu);
        for (int l = 0; l < problem.width(jv); ++l)
          s.dlogit[l] = T(grad_act[at + l * problem.P] * sigmoid(logit[l]) * sigmoid(-logit[l]));
      }
    for (int64_t t = final; t >= 0; --t) {
      prepare(b, t, slopes, d_beta);
      if (t == 0) {
        first_m_step_backward<kOffset>(b, slopes, d_weight);
      } else if (problem.last_only) {
        m_step_backward<true, kOffset>(b, t, slopes, d_weight);
        return;
      } else {
        m_step_backward<false, kOffset>(b, t, slopes, d_weight);
        e_step_backward(b, t, slopes);
      }
    }
  }

  // Calls image(b, slopes, sum of the weights' gradient, of the betas') for all images, and writes the weights' gradient.
  //
  // It is summed within groups of images, whose number does not depend on the threads, and over the groups in their
  // order; d_beta has 2 J numbers for each group.
  template <class Image>
  bool over_images(T* d_weight, std::vector<double>& d_beta, const Image& image) const {
    const WithoutSubnormals here;
    const int64_t size = problem.n_weights(), groups = std::min<int64_t>(problem.B, 16);
    const int64_t at_once = std::max<int64_t>(1, std::min(problem.n_threads, groups)), records = problem.P * problem.JV;
    Records<V> total(size);
    Buffer<T> part(size * at_once);
    Records<Slope<V>> slopes(records * at_once);
    d_beta.assign(std::max<int64_t>(groups, 1) * 2 * problem.J, 0.0);
    for (int64_t from = 0; from < groups; from += at_once) {
      const int64_t n = std::min(at_once, groups - from);
      const bool good = parallel(n, problem.n_threads, [&](int64_t i) {
        const WithoutSubnormals there;
        const int64_t g = from + i;
        V* sum = part + i * size;
        std::fill(sum, sum + size, V{});
        for (int64_t b = g * problem.B / groups; b < (g + 1) * problem.B / groups; ++b)
          image(b, slopes.get() + i * records, sum, d_beta.data() + g * 2 * problem.J);
      });
      if (!good) return false;
      for (int64_t i = 0; i < n; ++i)
        for (int64_t k = 0; k < size; ++k) total.get()[k] += part[i * size + k];
    }
    for (int64_t i = 0; i < problem.C * problem.K; ++i)
      for (int64_t jv = 0; jv < problem.JV; ++jv)
        from_lanes<T>(total.get() + problem.at(i, jv), d_weight + (i * problem.J + jv * L) * Pose::kNumbers,
                      Pose::kNumbers,
                      problem.width(jv), Pose::kNumbers);
    return true;
  }

  bool run(T* d_weight, T* d_beta_u, T* d_beta_a) const {
    std::vector<double> d_beta;
    const auto each = [&](int64_t b, Slope<V>* slopes, V* sum, double* betas) {
      problem.offset ? image<true>(b, slopes, sum, betas) : image<false>(b, slopes, sum, betas);
    };
    if (!over_images(d_weight, d_beta, each)) return false;
    const int64_t groups = int64_t(d_beta.size()) / (2 * std::max<int64_t>(problem.J, 1));
    for (int64_t j = 0; j < problem.J; ++j) {
      double u = 0, a = 0;
      for (int64_t g = 0; g < groups; ++g) u += d_beta[g * 2 * problem.J + j], a += d_beta[(g * 2 + 1) * problem.J + j];
      d_beta_u[j] = T(u), d_beta_a[j] = T(a);
    }
    return true;
  }
};

// 0, or 1 where memory ran out.
template <class T, class Pose>
int32_t backward(const Sizes& sizes, const Settings& settings, const double* lambda, const T* pose, const T* act,
                 const T* weight, const T* beta_u, const T* beta_a, const T* offset, const T* saved,
                 const T* grad_pose, const T* grad_act, const T* d_coupling, T* d_pose, T* d_act, T* d_weight,
                 T* d_beta_u, T* d_beta_a) {
  try {
    const Backward<T, Pose> op{{sizes, settings, lambda, pose, act, weight, beta_u, beta_a, offset},
                               saved, grad_pose, grad_act, d_coupling, d_pose, d_act};
    return op.run(d_weight, d_beta_u, d_beta_a) ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace
}  // namespace torchcaps
