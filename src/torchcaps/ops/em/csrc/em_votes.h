// Votes, made anew at every visit of a child; what is summed of them, and how a child is shared among its parents.
#pragma once

#include "em_walk.h"

namespace torchcaps {
namespace {

// A quarter of V − μ: components c, 4 + c, 8 + c and 12 + c.
template <class T, class Pose, bool kOffset>
inline void quarter(const T* m, const Vec<T>* weight, const Vec<T>* mu, const T* offset, int c, Vec<T>* v) {
  Pose::template quarter<T>(m, weight, c, [&](int h) { return kOffset ? mu[h] - offset[h] : mu[h]; }, v);
}

// V − μ into e; returns Σ (V − μ)² w.
template <class T, class Pose, bool kOffset>
inline Vec<T> differences(const T* m, const Vec<T>* weight, const Vec<T>* mu, const T* offset, const Vec<T>* w,
                          Vec<T>* e) {
  Vec<T> sum[4] = {};
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    Vec<T> v[4];
    quarter<T, Pose, kOffset>(m, weight, mu, offset, c, v);
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      e[4 * q + c] = v[q];
      sum[q] += v[q] * v[q] * w[4 * q + c];
    }
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Where all visits of a run are for one place the compiler is told so, and keeps its state in registers.
template <class Pose>
inline int64_t place_of(const std::vector<Visit>& run, const Visit& visit) {
  return (Pose::kEven ? run.data() : &visit)->place;
}

// s0 += Σ r, s1 += Σ r e, s2 += Σ r e² of the parents, over the children of a block; e and r by the votes' slots.
template <class Pose, class V, class Record>
inline void add_moments(const Block& block, int64_t JV, const V* e, const V* r, Record* parents) {
  for (const auto& run : block.by_place()) {
    const int n = int(run.size());
    if (!n) continue;
    const int64_t apart = n > 1 ? (run[1].slot - run[0].slot) * JV : 0;
    for (int64_t jv = 0; jv < JV; ++jv) {
      const auto slot = [&](int i) { return Pose::kEven ? run[0].slot * JV + jv + i * apart : run[i].slot * JV + jv; };
      Record& parent = parents[run[0].place * JV + jv];
      V total = {};
      for (int i = 0; i < n; ++i) total += r[slot(i)];
      parent.s0 += total;
      for (int h = 0; h < D; h += 4) {
        V a[4] = {}, b[4] = {};
        for (int i = 0; i < n; ++i) {
          const int64_t at = slot(i);
          const V x = r[at];
#pragma GCC unroll 4
          for (int k = 0; k < 4; ++k) {
            const V y = e[at * D + h + k], xy = x * y;
            a[k] += xy;
            b[k] += xy * y;
          }
        }
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) parent.s1[h + k] += a[k], parent.s2[h + k] += b[k];
      }
    }
  }
}

// From logits to R, in place, for a block of children: over all parents of a child, or for each type over its places.
// Keeps the greatest logit and the inverse of the sum, from which one R can be made again. Step by step for all
// children, so that no step waits for the one before.
template <class T>
inline void softmax(Vec<T>* logit, const Block& block, int64_t JV, bool positions, Vec<T>* greatest, Vec<T>* inverse) {
  typedef Vec<T> V;
  // Processors are slow with what would become of such a share: numbers below the least normal one.
  const V tiny = splat<T>(std::numeric_limits<T>::min() * T(1e8));
  const int64_t groups = positions ? JV : 1, n = block.n();
  for (int64_t i = 0; i < n; ++i) {
    const Block::Child& child = block.children[i];
    for (int64_t g = 0; g < groups; ++g) {
      const V* x = logit + child.slot * JV + g;
      V top = x[0];
      for (int64_t k = groups; k < child.n_seen * JV; k += groups) top = vmax(top, x[k]);
      greatest[i * groups + g] = positions ? top : max_lanes<T>(top);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    const Block::Child& child = block.children[i];
    for (int64_t k = 0; k < child.n_seen; ++k)
      for (int64_t jv = 0; jv < JV; ++jv) {
        V& x = logit[(child.slot + k) * JV + jv];
        x = exp_of_negative<T>(x - greatest[i * groups + (positions ? jv : 0)]);
      }
  }
  for (int64_t i = 0; i < n; ++i) {
    const Block::Child& child = block.children[i];
    for (int64_t g = 0; g < groups; ++g) {
      V* x = logit + child.slot * JV + g;
      V sum = {};
      for (int64_t k = 0; k < child.n_seen * JV; k += groups) sum += x[k];
      const V inv = T(1) / (positions ? sum : sum_lanes<T>(sum));
      inverse[i * groups + g] = inv;
      for (int64_t k = 0; k < child.n_seen * JV; k += groups) {
        const V share = x[k] * inv;
        x[k] = share < tiny ? V{} : share;
      }
    }
  }
}

}  // namespace
}  // namespace torchcaps
