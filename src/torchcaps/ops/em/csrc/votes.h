// Votes, made anew at every visit of a child; what is summed of them, and how a child is shared among its parents.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "problem.h"

namespace torchcaps {
namespace {

// ---- logarithms, and sums over the lanes of a vector ----

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

// ---- votes ----

// A quarter of V − μ: components c, 4 + c, 8 + c and 12 + c.
template <class T, class Pose, bool kOffset>
inline void quarter(const T* m, const Vec<T>* weight, const Vec<T>* mu, const T* offset, int c, Vec<T>* v) {
  Pose::template quarter<T>(m, weight, c, [&](int h) { return kOffset ? mu[h] - offset[h] : mu[h]; }, v);
}

// What is added to a logit, from four sums of its terms.
template <class T, class Pose>
inline Vec<T> logit_of(const Vec<T>* sum) {
  return (Pose::kLinear ? T(1) : T(-0.5)) * ((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// V − μ into e; returns what is added to the logit: −½ Σ (V − μ)² w, or Σ (V − μ) w.
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
      sum[q] += (Pose::kLinear ? v[q] : v[q] * v[q]) * w[4 * q + c];
    }
  }
  return logit_of<T, Pose>(sum);
}

// Where all visits of a run are for one place the compiler knows it, and keeps its state in registers.
template <class Pose>
inline int64_t place_of(const std::vector<Visit>& run, const Visit& visit) {
  return (Pose::kEven ? run.data() : &visit)->place;
}

constexpr int kSums = kRegisters / 4;  // numbers of a pose whose two sums stay in registers

// The same vector, which is in a register from here on: GCC would load it anew wherever it is used.
template <class V>
inline V in_register(V x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
  return x;
}

// s0 += Σ r, s1 += Σ r e, s2 += Σ r e² of the parents, over the children of a block; e and r by the votes' slots. Of
// each place's JV vectors of parents these are the first part.
template <class Pose, class V, class Record>
inline void add_moments(const Block& block, int64_t part, const V* e, const V* r, Record* parents, int64_t JV) {
  for (const auto& run : block.by_place()) {
    const int n = int(run.size());
    if (!n) continue;
    const int64_t apart = n > 1 ? (run[1].slot - run[0].slot) * part : 0;
    for (int64_t jv = 0; jv < part; ++jv) {
      const auto slot = [&](int i) {
        return Pose::kEven ? run[0].slot * part + jv + i * apart : run[i].slot * part + jv;
      };
      Record& parent = parents[run[0].place * JV + jv];
      for (int h = 0; h < D; h += kSums) {
        V a[kSums] = {}, b[kSums] = {}, total = {};
        for (int i = 0; i < n; ++i) {
          const int64_t at = slot(i);
          const V x = r[at];
          total += x;
#pragma GCC unroll 8
          for (int k = 0; k < kSums; ++k) {
            const V y = in_register(e[at * D + h + k]), xy = x * y;
            a[k] += xy;
            b[k] += xy * y;
          }
        }
        if (!h) parent.s0 += total;
#pragma GCC unroll 8
        for (int k = 0; k < kSums; ++k) parent.s1[h + k] += a[k], parent.s2[h + k] += b[k];
      }
    }
  }
}

// From logits to R, in place, for a block of children: over all parents of a child, or for each type over its places.
// Keeps the greatest logit and the inverse of the sum, from which one R can be made again. Step by step for all
// children, so that no step waits for the one before. A child has part logits for each place: one if over places.
template <class T>
inline void softmax(Vec<T>* logit, const Block& block, int64_t part, bool positions, Vec<T>* greatest,
                    Vec<T>* inverse) {
  typedef Vec<T> V;
  // Processors are slow with what would become of such a share: numbers below the least normal one.
  const V tiny = splat<T>(std::numeric_limits<T>::min() * T(1e8));
  const int64_t n = block.n();
  const auto each = [&](int64_t i, const auto& body) {
    const Block::Child& child = block.children[i];
    for (int64_t k = child.slot * part; k < (child.slot + child.n_seen) * part; ++k) body(logit[k]);
  };
  for (int64_t i = 0; i < n; ++i) {
    V top = logit[block.children[i].slot * part];
    each(i, [&](const V& x) { top = vmax(top, x); });
    greatest[i] = positions ? top : max_lanes<T>(top);
  }
  for (int64_t i = 0; i < n; ++i)
    each(i, [&, top = greatest[i]](V& x) { x = exp_of_negative<T>(x - top); });
  for (int64_t i = 0; i < n; ++i) {
    V sum = {};
    each(i, [&](const V& x) { sum += x; });
    const V inv = inverse[i] = T(1) / (positions ? sum : sum_lanes<T>(sum));
    each(i, [&](V& x) {
      const V share = x * inv;
      x = share < tiny ? V{} : share;
    });
  }
}

}  // namespace
}  // namespace torchcaps
