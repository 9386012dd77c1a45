// Vectors of the width that the compiler targets, in the extension that GCC and Clang share: no intrinsics.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace torchcaps {

#if defined(__AVX512F__)
constexpr int kBytes = 64, kRegisters = 32;
#elif defined(__AVX__)
constexpr int kBytes = 32, kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kBytes = 16, kRegisters = 32;
#else
constexpr int kBytes = 16, kRegisters = 16;
#endif

template <class T>
struct Simd;
template <>
struct Simd<float> {
  typedef float Vec __attribute__((vector_size(kBytes)));
  typedef int32_t Int __attribute__((vector_size(kBytes)));
};
template <>
struct Simd<double> {
  typedef double Vec __attribute__((vector_size(kBytes)));
  typedef int64_t Int __attribute__((vector_size(kBytes)));
};
template <class T>
using Vec = typename Simd<T>::Vec;
template <class T>
using Int = typename Simd<T>::Int;
template <class T>
constexpr int kLanes = kBytes / sizeof(T);

// ---- memory ----

// Asks for large pages under the n numbers that follow, before they are first written. Above 32 MB glibc returns memory
// to the system: without large pages the gradient of a large W costs a page fault for every 4 KB, at every call.
template <class T>
inline void large_pages(T* numbers, int64_t n) {
#if defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = 1 << 21;
  const uintptr_t from = (reinterpret_cast<uintptr_t>(numbers) + kPage - 1) / kPage * kPage;
  const uintptr_t to = reinterpret_cast<uintptr_t>(numbers + n) / kPage * kPage;
  if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);  // advice: may be refused
#else
  (void)numbers, (void)n;
#endif
}

// Memory for n vectors, aligned as they want it, never written.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t n) : data_(static_cast<Vec<T>*>(::operator new(bytes(n), align()))) {
    large_pages(get(), n);
  }
  Vec<T>* get() { return data_.get(); }
  Vec<T>* operator+(int64_t n) { return data_.get() + n; }
  Vec<T>& operator[](int64_t n) { return data_.get()[n]; }

 private:
  static size_t bytes(int64_t n) { return static_cast<size_t>(n > 0 ? n : 1) * kBytes; }
  static std::align_val_t align() { return std::align_val_t(kBytes); }
  struct Free {
    void operator()(Vec<T>* data) const { ::operator delete(data, align()); }
  };
  std::unique_ptr<Vec<T>, Free> data_;
};

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

// ---- loads and stores ----

template <class T>
inline Vec<T> splat(T x) {
  return x - Vec<T>{};
}

template <class T>
inline Vec<T> load(const T* from) {
  Vec<T> v;
  std::memcpy(&v, from, kBytes);
  return v;
}

template <class T>
inline void store(T* to, Vec<T> v) {
  std::memcpy(to, &v, kBytes);
}

// The same pointer, of which the compiler knows nothing: GCC would compute the address of every element outside of
// the loop, and run out of registers for them.
template <class P>
inline P* opaque(P* pointer) {
  asm("" : "+r"(pointer));
  return pointer;
}

template <class T>
inline T sum_of_lanes(Vec<T> v, int n) {
  double sum = 0;
  for (int l = 0; l < n; ++l) sum += static_cast<double>(v[l]);
  return static_cast<T>(sum);
}

// ---- exponential ----

template <class T>
struct Exp;
template <>
struct Exp<float> {
  static constexpr int kTerms = 7, kBias = 127, kMantissa = 23;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  static constexpr float kLog2e = 1.44269504088896340736f, kHigh = 0.693359375f, kLow = -2.12194440e-4f;
  static constexpr float kZero = -150.0f;  // from here on the result is 0
};
template <>
struct Exp<double> {
  static constexpr int kTerms = 13, kBias = 1023, kMantissa = 52;
  static constexpr double kRound = 6755399441055744.0;
  static constexpr double kLog2e = 1.44269504088896340736, kHigh = 6.93145751953125e-1;
  static constexpr double kLow = 1.42860682030941723212e-6, kZero = -1080.0;
};

template <class T>
constexpr T one_over_factorial(int k) {
  double product = 1;
  for (; k > 1; --k) product *= k;
  return static_cast<T>(1 / product);
}

// e^x for x <= 0, to about one unit in the last place; NaN as it should be, and subnormal results where the thread
// makes such.
template <class T>
inline Vec<T> exp_of_negative(Vec<T> x) {
  using E = Exp<T>;
  x = x < splat<T>(E::kZero) ? splat<T>(E::kZero) : x;
  const Vec<T> shifted = x * E::kLog2e + E::kRound;
  const Vec<T> n = shifted - E::kRound;
  const Vec<T> r = x - n * E::kHigh - n * E::kLow;  // |r| <= ln 2 / 2
  Vec<T> p = splat<T>(one_over_factorial<T>(E::kTerms));
#pragma GCC unroll 16
  for (int k = E::kTerms - 1; k >= 0; --k) p = p * r + one_over_factorial<T>(k);  // Taylor's series, after Horner
  Int<T> bits;
  const Vec<T> round = splat<T>(E::kRound);
  Int<T> zero;
  std::memcpy(&bits, &shifted, kBytes);
  std::memcpy(&zero, &round, kBytes);
  const Int<T> power = bits - zero, half = power >> 1;
  // 2^n as the product of two: n may lie below the exponents of normal numbers.
  const Int<T> one = (half + E::kBias) << E::kMantissa, two = (power - half + E::kBias) << E::kMantissa;
  Vec<T> first, second;
  std::memcpy(&first, &one, kBytes);
  std::memcpy(&second, &two, kBytes);
  return p * first * second;
}

// ---- transposition ----

// Of the rows a and b, their even (upper = 0) or odd stretches of Step lanes.
template <class T, int Step, int upper, int... L>
__attribute__((always_inline)) inline Vec<T> mix(Vec<T> a, Vec<T> b, std::integer_sequence<int, L...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, ((L & Step) ? kLanes<T> + L - Step + upper * Step : L + upper * Step)...);
#else
  return __builtin_shuffle(a, b, Int<T>{((L & Step) ? kLanes<T> + L - Step + upper * Step : L + upper * Step)...});
#endif
}

// Inlined, or the vectors would go through memory.
template <class T, int Step = 1>
__attribute__((always_inline)) inline void transpose(Vec<T> (&x)[kLanes<T>]) {
  if constexpr (Step < kLanes<T>) {
    const auto lanes = std::make_integer_sequence<int, kLanes<T>>();
#pragma GCC unroll 16
    for (int row = 0; row < kLanes<T>; ++row) {
      if (row & Step) continue;
      const Vec<T> a = x[row], b = x[row + Step];
      x[row] = mix<T, Step, 0>(a, b, lanes);
      x[row + Step] = mix<T, Step, 1>(a, b, lanes);
    }
    transpose<T, 2 * Step>(x);
  }
}

// Columns [0, width) of n <= kLanes rows become vectors with one row in each lane; lanes without a row become 0.
template <class T>
void to_lanes(const T* rows, int64_t stride, int n, int64_t width, Vec<T>* out) {
  constexpr int L = kLanes<T>;
  int64_t at = 0;
  for (; at + L <= width; at += L) {
    Vec<T> x[L];
#pragma GCC unroll 16
    for (int l = 0; l < L; ++l) x[l] = l < n ? load(rows + l * stride + at) : splat<T>(0);
    transpose<T>(x);
#pragma GCC unroll 16
    for (int l = 0; l < L; ++l) out[at + l] = x[l];
  }
  for (; at < width; ++at) {
    out[at] = splat<T>(0);
    for (int l = 0; l < n; ++l) out[at][l] = rows[l * stride + at];
  }
}

// The way back.
template <class T>
void from_lanes(const Vec<T>* in, T* rows, int64_t stride, int n, int64_t width) {
  constexpr int L = kLanes<T>;
  int64_t at = 0;
  for (; at + L <= width; at += L) {
    Vec<T> x[L];
#pragma GCC unroll 16
    for (int l = 0; l < L; ++l) x[l] = in[at + l];
    transpose<T>(x);
    for (int l = 0; l < n; ++l) store(rows + l * stride + at, x[l]);
  }
  for (; at < width; ++at) {
    for (int l = 0; l < n; ++l) rows[l * stride + at] = in[at][l];
  }
}

// ---- sizes known to the compiler ----

// Calls body(size, from) for stretches of 1 ... most that make up [0, n), sizes as even as can be: what is
// written for a size that the compiler knows keeps its accumulators in registers.
template <int most, class Body, int... S>
inline void stretches(int64_t n, const Body& body, std::integer_sequence<int, S...>) {
  const int64_t count = (n + most - 1) / most;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t from = k * n / count, size = (k + 1) * n / count - from;
    ((size == S + 1 ? body(std::integral_constant<int, S + 1>(), from) : void()), ...);
  }
}
template <int most, class Body>
inline void stretches(int64_t n, const Body& body) {
  stretches<most>(n, body, std::make_integer_sequence<int, most>());
}

}  // namespace torchcaps
