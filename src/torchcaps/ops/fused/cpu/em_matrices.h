// Poses that are 4×4 matrices: V = M W.
#pragma once

#include "em_walk.h"

namespace torchcaps {
namespace {

struct Matrices {
  static constexpr int64_t kNumbers = D;  // of a transformation
  static constexpr int64_t kRows = 24;    // rows of weights that stay in L1 while all places use them
  static constexpr bool kEven = true;     // a run of visits is of one place, its slots evenly spaced

  template <class P>
  using Walk = ByType<P>;

  // Components c, 4 + c, 8 + c and 12 + c of M W − rest: a column.
  template <class T, class Rest>
  static inline void quarter(const T* m, const Vec<T>* weight, int c, const Rest& rest, Vec<T>* v) {
    const Vec<T> w0 = weight[c], w1 = weight[4 + c], w2 = weight[8 + c], w3 = weight[12 + c];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      Vec<T> x = m[4 * q] * w0 - rest(4 * q + c);
      x += m[4 * q + 1] * w1;
      x += m[4 * q + 2] * w2;
      v[q] = x + m[4 * q + 3] * w3;
    }
  }

  // sum += M W
  template <class T>
  static inline void add(const T* m, const Vec<T>* weight, Vec<T>* sum) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k)
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q)
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) sum[4 * q + c] += m[4 * q + k] * weight[4 * k + c];
  }

  // From the gradient of a vote, quarter by quarter, to those of the pose and of the weights, which are added to.
  template <class T>
  struct Gradients {
    typedef Vec<T> V;
    const T* m;
    const V* weight;
    V *dm, *dw, sum[D];

    Gradients(const T* m, const V* weight, V* dm, V* dw) : m(m), weight(weight), dm(dm), dw(dw) {
#pragma GCC unroll 16
      for (int h = 0; h < D; ++h) sum[h] = dm[h];
    }

    void quarter(int c, const V* dv) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const V w = weight[4 * k + c];
        V d = dw[4 * k + c];
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {
          sum[4 * q + k] += dv[q] * w;
          d += m[4 * q + k] * dv[q];
        }
        dw[4 * k + c] = d;
      }
    }

    void finish() {
#pragma GCC unroll 16
      for (int h = 0; h < D; ++h) dm[h] = sum[h];
    }
  };
};

}  // namespace
}  // namespace torchcaps
