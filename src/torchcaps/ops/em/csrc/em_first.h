// EM routing's first M-step: the parents under the R that all children start from.
#pragma once

#include "em_votes.h"

namespace torchcaps {
namespace {

template <class V>
struct Parent {  // L parents of one place
  V mu[D], w[D];           // the state that the E-step sees: mean, 1/σ²
  V s1[D], s2[D];          // Σ r (V − μ), Σ r (V − μ)²
  V t1[D], t2[D], t0;      // the same, of the runs put aside
  V s0, c;                 // Σ r; log a − ½ Σ log σ², but for what all have in common
};

template <class T, class Pose>
struct First : Problem<T, Pose> {
  typedef Vec<T> V;
  using Base = Problem<T, Pose>;

  using Base::Base;

  // The mean and the variance of every parent; two passes, hence exact.
  template <bool kOffset>
  void first(int64_t b, Parent<V>* parents, T* weighted) const {
    const int64_t rows = this->C * this->K, JV = this->JV, children = this->C * this->H * this->W;
    T* r = weighted + children * D;  // r [children] and r·M [children, 16]
    std::vector<Seen> seen(this->most_seen);
    for (int64_t y = 0; y < this->H; ++y)
      for (int64_t x = 0; x < this->W; ++x) {
        const int n_seen = this->seen_by(y, x, seen.data());
        const T start = n_seen ? this->start(n_seen) : T(0);
        for (int64_t c = 0; c < this->C; ++c) {
          const int64_t child = this->child(0, c, y, x);
          const T* m = this->pose + (b * children + child) * D;
          r[child] = start * this->act[b * children + child];
          for (int h = 0; h < D; ++h) weighted[child * D + h] = r[child] * m[h];
        }
      }
    for (int64_t p = 0; p < this->P; ++p) {
      double total = 0, shift[D] = {};
      for (int64_t i = 0; i < rows; ++i) {
        const T ri = r[this->seen_child(i, p)];
        total += ri;
        if (kOffset)
          for (int h = 0; h < D; ++h) shift[h] += double(ri) * this->offset[i * D + h];
      }
      for (int64_t jv = 0; jv < JV; ++jv) {
        Parent<V>& parent = parents[p * JV + jv];
        parent.s0 = splat<T>(T(total) + this->eps);
        for (int h = 0; h < D; ++h) {
          parent.mu[h] = splat<T>(T(shift[h]));
          parent.s1[h] = parent.s2[h] = V{};
        }
      }
    }
    for (int64_t jv = 0; jv < JV; ++jv)
      for (int64_t from = 0; from < rows; from += Pose::kRows)
        for (int64_t p = 0; p < this->P; ++p) {
          V* mu = parents[p * JV + jv].mu;
          V run[D] = {};
          for (int64_t i = from; i < std::min(rows, from + Pose::kRows); ++i)
            Pose::template add<T>(weighted + this->seen_child(i, p) * D, this->weights(i, jv), run);
#pragma GCC unroll 16
          for (int h = 0; h < D; ++h) mu[h] += run[h];
        }
    for (int64_t i = 0; i < this->P * JV; ++i)
      for (int h = 0; h < D; ++h) parents[i].mu[h] *= (1 - this->damping) / parents[i].s0;
    const T* poses = this->pose + b * children * D;
    for (int64_t jv = 0; jv < JV; ++jv)
      for (int64_t from = 0; from < rows; from += Pose::kRows)
        for (int64_t p = 0; p < this->P; ++p) {
          Parent<V>& parent = parents[p * JV + jv];
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c) {
            V run[4] = {}, rest[4] = {};
            for (int64_t i = from; i < std::min(rows, from + Pose::kRows); ++i) {
              const int64_t child = this->seen_child(i, p);
              V v[4];
              quarter<T, Pose, kOffset>(poses + child * D, this->weights(i, jv), parent.mu, this->offset + i * D, c, v);
#pragma GCC unroll 4
              for (int q = 0; q < 4; ++q) {
                const V rv = r[child] * v[q];
                rest[q] += rv;
                run[q] += rv * v[q];
              }
            }
#pragma GCC unroll 4
            for (int q = 0; q < 4; ++q) parent.s1[4 * q + c] += rest[q], parent.s2[4 * q + c] += run[q];
          }
        }
    for (int64_t p = 0; p < this->P; ++p)
      for (int64_t jv = 0; jv < JV; ++jv) {
        Parent<V>& parent = parents[p * JV + jv];
        const V all = parent.s0 - this->eps;  // Σ r
        for (int h = 0; h < D; ++h) {
          // The second sum says how far rounding in the first, long one left the mean amiss.
          const V s1 = parent.s1[h], mu = parent.mu[h];
          parent.mu[h] += (1 - this->damping) * (s1 - this->eps * mu) / parent.s0 - this->damping * mu;
          const V amiss = parent.mu[h] - mu;  // as rounded
          parent.t1[h] = parent.mu[h];
          parent.t2[h] = (s1 - amiss * all) / parent.s0;
          parent.s2[h] = (parent.s2[h] + amiss * (amiss * all - T(2) * s1)) / parent.s0 + this->floor;
        }
      }
  }
};

}  // namespace
}  // namespace torchcaps
