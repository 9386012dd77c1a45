// The two kinds of poses: 4×4 matrices, and vectors of 16 numbers.
#pragma once

#include "problem.h"

namespace torchcaps {
namespace {

// Poses that are 4×4 matrices: V = M W.
struct Matrices {
  static constexpr int64_t kNumbers = D;  // of a transformation
  static constexpr int64_t kRows = 24;    // rows of weights that stay in L1 while all places use them
  static constexpr bool kEven = true;     // a run of visits is of one place, its slots evenly spaced
  static constexpr bool kLinear = false;  // whether logits are products Σ w V, instead of distances −½ Σ w (V − μ)²

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

  // From the gradient of a vote to those of the pose and of the weights, which are added to: by columns of M and rows
  // of W, so that every number is loaded once.
  template <class T>
  static inline void backward(const T* m, const Vec<T>* weight, const Vec<T>* dv, Vec<T>* dm, Vec<T>* dw) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      Vec<T> columns[4], w[4], rows[4];
#pragma GCC unroll 4
      for (int l = 0; l < 4; ++l) columns[l] = dm[4 * l + k], w[l] = weight[4 * k + l], rows[l] = dw[4 * k + l];
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q)
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
          columns[q] += dv[4 * q + c] * w[c];
          rows[c] += m[4 * q + k] * dv[4 * q + c];
        }
#pragma GCC unroll 4
      for (int l = 0; l < 4; ++l) dm[4 * l + k] = columns[l], dw[4 * k + l] = rows[l];
    }
  }
};

// The same, shared by products of votes. There μ is 0, and sums of squares say nothing.
struct LinearMatrices : Matrices {
  static constexpr bool kLinear = true;
};

// Poses that are vectors of 16 numbers: V = M W with a row vector M and a 16×16 matrix W.
//
// There are 16 times as many weights as with matrices, and they no longer stay in L2 while all places use them.
struct Vectors {
  static constexpr int64_t kNumbers = D * D;  // of a transformation
  static constexpr int64_t kRows = 1;         // rows of weights that stay close while all places use them
  static constexpr bool kEven = false;        // a run of visits is of many places
  static constexpr bool kLinear = false;

  template <class P>
  using Walk = ByPosition<P>;

  // Components c, 4 + c, 8 + c and 12 + c of M W − rest.
  template <class T, class Rest>
  static inline void quarter(const T* m, const Vec<T>* weight, int c, const Rest& rest, Vec<T>* v) {
    Vec<T> x[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) x[q] = m[0] * weight[4 * q + c] - rest(4 * q + c);
#pragma GCC unroll 16
    for (int k = 1; k < D; ++k)
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) x[q] += m[k] * weight[k * D + 4 * q + c];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) v[q] = x[q];
  }

  // From the gradient of a vote to those of the pose and of the weights, which are added to.
  template <class T>
  static inline void backward(const T* m, const Vec<T>* weight, const Vec<T>* dv, Vec<T>* dm, Vec<T>* dw) {
    for (int k = 0; k < D; ++k) {
      Vec<T> sum[4] = {};
#pragma GCC unroll 16
      for (int h = 0; h < D; ++h) {
        sum[h % 4] += dv[h] * weight[k * D + h];
        dw[k * D + h] += m[k] * dv[h];
      }
      dm[k] += (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
  }
};

}  // namespace
}  // namespace torchcaps
