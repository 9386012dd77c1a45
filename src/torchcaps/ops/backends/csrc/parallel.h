// Tasks on several threads, and how these round numbers near 0. backends/native.py loads libraries that include this.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

// Of the functions that Python calls.
#if defined(_WIN32)
#define TORCHCAPS_EXPORT extern "C" __declspec(dllexport)
#else
#define TORCHCAPS_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace torchcaps {

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

// GOMP_parallel of the OpenMP that torch has loaded, or null. Its threads are awake already; where there is
// none, threads are started for each call, which costs tens of microseconds and leaves nothing that spins.
inline Parallel& openmp() {
  static Parallel function = nullptr;
  return function;
}

// Calls body(0) ... body(n - 1), in any order, on up to n_threads threads.
// Who does a task must not change what it computes: then the number of threads changes nothing.
// Returns false if a task threw, as it does when memory runs out.
template <class Body>
bool parallel(int64_t n, int64_t n_threads, const Body& body) {
  struct Team {
    const Body& body;
    const int64_t n;
    std::atomic<int64_t> next{0};
    std::atomic<bool> good{true};
    static void enter(void* team) { static_cast<Team*>(team)->work(); }
    void work() {
      try {
        for (int64_t task; (task = next.fetch_add(1)) < n;) body(task);
      } catch (const std::exception&) {
        good = false;
      }
    }
  } team{body, n};
  if (n_threads <= 1 || n <= 1) {
    team.work();
  } else if (openmp()) {
    // The same number for however few tasks: OpenMP ends the threads that a smaller team leaves over, and has to start
    // them again for the next. Those who find no task return.
    openmp()(&Team::enter, &team, static_cast<unsigned>(n_threads), 0);
  } else {
    if (n_threads > n) n_threads = n;
    std::vector<std::thread> others;
    try {
      for (int64_t k = 1; k < n_threads; ++k) others.emplace_back(&Team::enter, static_cast<void*>(&team));
    } catch (const std::exception&) {
      // Fewer threads than wished for do the same work.
    }
    team.work();
    for (std::thread& other : others) other.join();
  }
  return team.good;
}

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

TORCHCAPS_EXPORT inline __attribute__((used)) void use_openmp(void* function) {
  torchcaps::openmp() = reinterpret_cast<torchcaps::Parallel>(function);
#if !defined(_WIN32)
  // A forked process has none of its parent's threads, for which OpenMP would wait for ever.
  pthread_atfork(nullptr, nullptr, [] { torchcaps::openmp() = nullptr; });
#endif
}
