// Votes, made anew at every visit of a child; what is summed of them, and how a child is shared among its parents.
#pragma once

#include "em_lanes.h"

namespace torchcaps {
namespace {

// Column c of V − μ: components c, 4 + c, 8 + c and 12 + c.
template <class T, bool kOffset>
inline void column(const T* m, const Vec<T>* weight, const Vec<T>* mu, const T* offset, int c, Vec<T>* v) {
  const Vec<T> w0 = weight[c], w1 = weight[4 + c], w2 = weight[8 + c], w3 = weight[12 + c];
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    Vec<T> x = m[4 * q] * w0 - (kOffset ? mu[4 * q + c] - offset[4 * q + c] : mu[4 * q + c]);
    x += m[4 * q + 1] * w1;
    x += m[4 * q + 2] * w2;
    v[q] = x + m[4 * q + 3] * w3;
  }
}

// V − μ into e; returns Σ (V − μ)² w.
template <class T, bool kOffset>
inline Vec<T> differences(const T* m, const Vec<T>* weight, const Vec<T>* mu, const T* offset, const Vec<T>* w,
                          Vec<T>* e) {
  Vec<T> sum[4] = {};
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    Vec<T> v[4];
    column<T, kOffset>(m, weight, mu, offset, c, v);
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      e[4 * q + c] = v[q];
      sum[q] += v[q] * v[q] * w[4 * q + c];
    }
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// s0 += Σ r, s1 += Σ r e, s2 += Σ r e² over n children, whose e lie `apart` vectors from each other.
template <class V>
inline void add_moments(const V* e, const V* r, int n, int64_t apart, V* s0, V* s1, V* s2) {
  V total = {};
  for (int i = 0; i < n; ++i) total += r[i * apart];
  *s0 += total;
  for (int h = 0; h < D; h += 4) {
    V a[4] = {}, b[4] = {};
    for (int i = 0; i < n; ++i) {
      const V x = r[i * apart];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const V y = e[i * apart * D + h + k], xy = x * y;
        a[k] += xy;
        b[k] += xy * y;
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) s1[h + k] += a[k], s2[h + k] += b[k];
  }
}

// From logits to R, in place, for n children whose logits lie `apart` vectors from each other: over all parents of a
// child, or for each type over its places. Keeps the greatest logit and the inverse of the sum, from which one R can
// be made again. Step by step for all children, so that no step waits for the one before.
template <class T>
inline void softmax(Vec<T>* logit, int n, int64_t apart, int n_seen, int64_t JV, bool positions, Vec<T>* greatest,
                    Vec<T>* inverse) {
  typedef Vec<T> V;
  // Processors are slow with what would become of such a share: numbers below the least normal one.
  const V tiny = splat<T>(std::numeric_limits<T>::min() * T(1e8));
  const int64_t groups = positions ? JV : 1, step = positions ? JV : 1, terms = positions ? n_seen : n_seen * JV;
  for (int i = 0; i < n; ++i)
    for (int64_t g = 0; g < groups; ++g) {
      const V* x = logit + i * apart + g;
      V top = x[0];
      for (int64_t k = 1; k < terms; ++k) top = vmax(top, x[k * step]);
      greatest[i * groups + g] = positions ? top : max_lanes<T>(top);
    }
  for (int i = 0; i < n; ++i)
    for (int64_t k = 0; k < n_seen; ++k)
      for (int64_t jv = 0; jv < JV; ++jv) {
        V& x = logit[i * apart + k * JV + jv];
        x = exp_of_negative<T>(x - greatest[i * groups + (positions ? jv : 0)]);
      }
  for (int i = 0; i < n; ++i)
    for (int64_t g = 0; g < groups; ++g) {
      V* x = logit + i * apart + g;
      V sum = {};
      for (int64_t k = 0; k < terms; ++k) sum += x[k * step];
      const V inv = T(1) / (positions ? sum : sum_lanes<T>(sum));
      inverse[i * groups + g] = inv;
      for (int64_t k = 0; k < terms; ++k) {
        const V share = x[k * step] * inv;
        x[k * step] = share < tiny ? V{} : share;
      }
    }
}

}  // namespace
}  // namespace torchcaps
