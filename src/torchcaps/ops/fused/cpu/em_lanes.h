// What EM routing asks of a vector beyond arithmetic: logarithms, and sums over its lanes.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "simd.h"

namespace torchcaps {
namespace {

constexpr int D = 16;  // numbers in a pose

// Zeroed memory for n records made of vectors.
template <class Record>
class Records {
 public:
  explicit Records(int64_t n) : data_(static_cast<Record*>(::operator new(bytes(n), std::align_val_t(kBytes)))) {
    std::memset(static_cast<void*>(data_), 0, bytes(n));
  }
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;
  ~Records() { ::operator delete(data_, std::align_val_t(kBytes)); }
  Record* get() { return data_; }

 private:
  static size_t bytes(int64_t n) { return static_cast<size_t>(n > 0 ? n : 1) * sizeof(Record); }
  Record* data_;
};

inline Vec<float> vlog(Vec<float> x) {  // Cephes
  typedef Vec<float> V;
  typedef Int<float> I;
  for (int l = 0; l < kLanes<float>; ++l)
    if (!(x[l] >= std::numeric_limits<float>::min() && x[l] <= std::numeric_limits<float>::max())) {
      for (int k = 0; k < kLanes<float>; ++k) x[k] = std::log(x[k]);
      return x;
    }
  I e = ((I)x >> 23) - 126;
  V m = (V)(((I)x & 0x007fffff) | 0x3f000000);  // in [0.5, 1)
  const I low = m < 0.707106781186547524f;
  e += low;
  m = m + (V)((I)m & low) - 1.f;
  const V n = __builtin_convertvector(e, V);
  const V z = m * m;
  V p = m * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  p = p * m * z + n * -2.12194440e-4f - z * 0.5f;
  return m + p + n * 0.693359375f;
}

inline Vec<double> vlog(Vec<double> x) {
  for (int l = 0; l < kLanes<double>; ++l) x[l] = std::log(x[l]);
  return x;
}

template <class V>
inline V vmax(V a, V b) {
  return a < b ? b : a;
}

// Lanes kFirst, kFirst + kStep … of a and b, one after the other.
template <class T, int kFirst, int kStep, int... kLane>
inline Vec<T> pick(Vec<T> a, Vec<T> b, std::integer_sequence<int, kLane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (kFirst + kStep * kLane)...);
#else
  return __builtin_shuffle(a, b, Int<T>{(kFirst + kStep * kLane)...});
#endif
}

template <class T, int kFirst, int kStep>
inline Vec<T> pick(Vec<T> a, Vec<T> b) {
  return pick<T, kFirst, kStep>(a, b, std::make_integer_sequence<int, kLanes<T>>());
}

template <class T, int n = kLanes<T> / 2>
inline Vec<T> max_lanes(Vec<T> x) {  // in every lane
  x = vmax(x, pick<T, n, 1>(x, x));
  if constexpr (n > 1) x = max_lanes<T, n / 2>(x);
  return x;
}

template <class T, int n = kLanes<T> / 2>
inline Vec<T> sum_lanes(Vec<T> x) {  // in every lane
  x += pick<T, n, 1>(x, x);
  if constexpr (n > 1) x = sum_lanes<T, n / 2>(x);
  return x;
}

template <class T>
inline Vec<T> load_lanes(const T* from, int n, T fill = 0) {
  Vec<T> x = splat<T>(fill);
  std::memcpy(&x, from, n * sizeof(T));
  return x;
}

template <class T>
inline void store_lanes(T* to, Vec<T> x, int n) {
  std::memcpy(to, &x, n * sizeof(T));
}

template <class T>
inline void add_lane_sums(const Vec<T>* x, T* to) {  // to[h] += Σ of the lanes of x[h]
  constexpr int L = kLanes<T>;
  Vec<T> part[D];
#pragma GCC unroll 16
  for (int h = 0; h < D; ++h) part[h] = x[h];
#pragma GCC unroll 4
  for (int n = L / 2, left = D / 2; n; n /= 2, left /= 2)  // neighbouring lanes: afterwards lane h holds Σ x[h]
#pragma GCC unroll 8
    for (int h = 0; h < left; ++h)
      part[h] = pick<T, 0, 2>(part[2 * h], part[2 * h + 1]) + pick<T, 1, 2>(part[2 * h], part[2 * h + 1]);
#pragma GCC unroll 4
  for (int k = 0; k < D / L; ++k) {
    Vec<T> total;
    std::memcpy(&total, to + k * L, sizeof total);
    total += part[k];
    std::memcpy(to + k * L, &total, sizeof total);
  }
}

}  // namespace
}  // namespace torchcaps
