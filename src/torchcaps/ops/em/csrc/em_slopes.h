// EM routing backward, between visits of the children: the gradients of the parents' states.
#pragma once

#include "em_problem.h"

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
struct Slopes : Problem<T, Pose> {
  typedef Vec<T> V;
  using Base = Problem<T, Pose>;
  using Base::L;
  const T* saved;

  using Base::Base;

  const T* state(int64_t b, int64_t t, int64_t p, int64_t jv) const {
    return saved + ((b * this->P + p) * this->kept() + t * kState) * this->J + jv * L;
  }

  // From the gradients of μ, σ² and logit of iteration t to what a visit of the children needs.
  void prepare(int64_t b, int64_t t, Slope<V>* slopes, double* d_beta) const {
    const double lambda = this->lambda[t];
    const T keep = 1 - this->damping, lag = this->damping / keep, per_log = T(-lambda * this->ratio * this->s_v * 0.5);
    const int64_t J = this->J;
    std::vector<double> log_ap(this->P * this->JV * L, -std::numeric_limits<double>::infinity());
    for (int64_t i = 0; i < this->P * this->JV; ++i) {
      const int64_t p = i / this->JV, jv = i % this->JV;
      const int n = this->width(jv);
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
        d_beta[j] -= dlogit * this->ratio * this->s_u * D * mass[l];
        d_beta[J + j] += dlogit * this->s_a;
        k[l] = T(-dlogit * this->cost(j, logs[l]));
      }
      for (int h = 0; h < D; ++h) {
        V mu = {};  // by the same sums as in the forward pass
        for (int64_t before = 0; before < t; ++before) mu += load_lanes<T>(state(b, before, p, jv) + h * J, n);
        const V moved = load_lanes<T>(now + h * J, n);
        s.mu[h] = t ? mu : moved;
        mu += moved;
        const V pull = this->eps * mu / mass;
        const V left = t ? lag * moved + pull : load_lanes<T>(now + (this->n_iters * kState + h) * J, n);
        const V apart = left - pull;  // mean − μ
        const V g2 = s.dvar[h] / mass + per_log * s.dlogit / var[h];
        const V dmu = s.dmu[h] - T(2) * g2 * mass * left;
        const V g1 = keep * dmu / mass;
        k -= g2 * (var[h] - this->floor) + g1 * apart;
        s.dmu[h] = this->damping * dmu;
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
    if (t) this->level(log_ap, slopes);
  }

  // The gradients of the states that the E-step before iteration t saw.
  void through(int64_t b, int64_t t, Slope<V>* slopes) const {
    for (int64_t p = 0; p < this->P; ++p)
      for (int64_t jv = 0; jv < this->JV; ++jv) {
        Slope<V>& s = slopes[p * this->JV + jv];
        const V logit = load_lanes<T>(state(b, t - 1, p, jv) + kLogit * this->J, this->width(jv));
        for (int l = 0; l < L; ++l) s.dlogit[l] = T(s.s0[l] * sigmoid(-logit[l]));
        for (int h = 0; h < D; ++h) {
          s.dmu[h] += s.s1[h] * s.w[h];
          s.dvar[h] = T(0.5) * s.w[h] * (s.s2[h] * s.w[h] - s.s0);
        }
      }
  }
};

}  // namespace
}  // namespace torchcaps
