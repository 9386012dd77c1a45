// Numbers too small for a processor's fast paths.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace torchcaps {

// While it lives, this thread takes numbers below the smallest normal one (1e-38 in float32) for 0, and makes none:
// processors compute with them many times slower. EM routing makes them once its capsules have learned, of children
// that hardly belong to a parent and of parents that are hardly active.
class WithoutSubnormals {
 public:
  WithoutSubnormals() : before_(get()) { set(before_ | kFlush); }
  ~WithoutSubnormals() { set(before_); }
  WithoutSubnormals(const WithoutSubnormals&) = delete;
  WithoutSubnormals& operator=(const WithoutSubnormals&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr uint64_t kFlush = 0x8040;  // results, and what goes in
  static uint64_t get() { return _mm_getcsr(); }
  static void set(uint64_t state) { _mm_setcsr(static_cast<unsigned>(state)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = uint64_t{1} << 24;  // both
  static uint64_t get() {
    uint64_t state;
    __asm__ volatile("mrs %0, fpcr" : "=r"(state));
    return state;
  }
  static void set(uint64_t state) { __asm__ volatile("msr fpcr, %0" : : "r"(state)); }
#else
  static constexpr uint64_t kFlush = 0;
  static uint64_t get() { return 0; }
  static void set(uint64_t) {}
#endif
  const uint64_t before_;
};

}  // namespace torchcaps
