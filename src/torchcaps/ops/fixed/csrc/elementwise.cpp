// Products of two matrices whose entries are vectors, multiplied number by number: y_mn = Σ_k a_mk ⊙ b_kn.
// ops/fixed/elementwise.py calls it, for votes and for both gradients.
#include <algorithm>

#include "parallel.h"
#include "simd.h"

namespace torchcaps {
namespace {

constexpr int kRows = 4;                          // of a tile that is accumulated in registers
constexpr int kColumns = kRegisters == 32 ? 5 : 2;
constexpr int64_t kGroup = 8;                     // rows of a task: as few as fill a few tiles

// A matrix of vectors as it lies in memory: vectors from one row, and from one column, to the next.
template <class T>
struct Matrix {
  T* data;
  int64_t row, column;
};

template <class T>
struct Product {
  int64_t M, N, K, D, threads;
  Matrix<const T> a, b;
  Matrix<T> y;
  int64_t groups() const { return (M + kGroup - 1) / kGroup; }
  int64_t vectors() const { return (D + kLanes<T> - 1) / kLanes<T>; }
};

// The first n numbers of a vector; 0 behind them.
template <class T, bool whole>
inline Vec<T> load_some(const T* from, int64_t n) {
  if constexpr (whole) return load(from);
  Vec<T> v = splat<T>(0);
  std::memcpy(&v, from, n * sizeof(T));
  return v;
}

template <class T, bool whole, int R, int C>
void tile(const Product<T>& p, int64_t row, int64_t column, int64_t at, int64_t n) {
  Vec<T> acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r][c] = splat<T>(0);
  }
  const T* a = p.a.data + row * p.a.row * p.D + at;
  const T* b = p.b.data + column * p.b.column * p.D + at;
  for (int64_t k = 0; k < p.K; ++k, a += p.a.column * p.D, b += p.b.row * p.D) {
    Vec<T> x[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) x[r] = load_some<T, whole>(a + r * p.a.row * p.D, n);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const Vec<T> w = load_some<T, whole>(b + c * p.b.column * p.D, n);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][c] += x[r] * w;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      T* to = p.y.data + ((row + r) * p.y.row + (column + c) * p.y.column) * p.D + at;
      std::memcpy(to, &acc[r][c], n * sizeof(T));
    }
  }
}

template <class T, bool whole>
void rows(const Product<T>& p, int64_t group, int64_t at, int64_t n) {
  const int64_t first = group * kGroup;
  stretches<kRows>(std::min(kGroup, p.M - first), [&](auto height, int64_t row) {
    stretches<kColumns>(p.N, [&](auto width, int64_t column) {
      tile<T, whole, decltype(height)::value, decltype(width)::value>(p, first + row, column, at, n);
    });
  });
}

// Tasks of one stretch of numbers come one after the other: what they share stays in a cache.
template <class T>
bool run(const Product<T>& p) {
  constexpr int64_t L = kLanes<T>;
  return parallel(p.vectors() * p.groups(), p.threads, [&](int64_t task) {
    const int64_t group = task % p.groups(), at = task / p.groups() * L, n = std::min(L, p.D - at);
    n == L ? rows<T, true>(p, group, at, L) : rows<T, false>(p, group, at, n);
  });
}

}  // namespace
}  // namespace torchcaps

// 0, or 1 where something was thrown. Of each matrix the vectors from row to row, and from column to column.
#define TORCHCAPS_ELEMENTWISE(T, suffix)                                                                             \
  TORCHCAPS_EXPORT int32_t elementwise_##suffix(                                                                     \
      int64_t M, int64_t N, int64_t K, int64_t D, int64_t threads, int64_t a_row, int64_t a_column, int64_t b_row,   \
      int64_t b_column, int64_t y_row, int64_t y_column, const T* a, const T* b, T* y) {                             \
    return torchcaps::run<T>({M, N, K, D, threads, {a, a_row, a_column}, {b, b_row, b_column}, {y, y_row, y_column}}) \
        ? 0 : 1;                                                                                                     \
  }
TORCHCAPS_ELEMENTWISE(float, f32)
TORCHCAPS_ELEMENTWISE(double, f64)
