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

// Of one number of a parent; in double precision no care is needed at either end.
inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double log_sigmoid(double x) { return (x < 0 ? x : 0) - std::log1p(std::exp(-std::abs(x))); }

// Σ log x[h] of each lane: exponents are summed as they are, and one logarithm is taken of the product of the rest.
template <class T>
inline void sum_of_logs(const Vec<T>* x, double* sum) {
  typedef std::numeric_limits<T> Limits;
  const Int<T> one = (Int<T>)splat<T>(1), mantissa = ((Int<T>{} + 1) << Exp<T>::kMantissa) - 1;
  Int<T> exponent = {}, odd = {};
  Vec<T> product = splat<T>(1);
  for (int h = 0; h < D; ++h) {
    const Int<T> bits = (Int<T>)x[h];
    odd |= ~((x[h] >= Limits::min()) & (x[h] <= Limits::max()));
    exponent += (bits >> Exp<T>::kMantissa) - Exp<T>::kBias;
    product *= (Vec<T>)((bits & mantissa) | one);  // each from 1 to 2
  }
  for (int l = 0; l < kLanes<T>; ++l) {
    sum[l] = double(exponent[l]) * 0.69314718055994530942 + std::log(double(product[l]));
    if (!odd[l]) continue;
    sum[l] = 0;
    for (int h = 0; h < D; ++h) sum[l] += std::log(double(x[h][l]));
  }
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
  if (n == kLanes<T>) return load<T>(from);  // without a call of memcpy
  Vec<T> x = splat<T>(fill);
  std::memcpy(&x, from, n * sizeof(T));
  return x;
}

template <class T>
inline void store_lanes(T* to, Vec<T> x, int n) {
  if (n == kLanes<T>) return store<T>(to, x);
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
