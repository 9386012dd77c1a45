// Large pages under large memory, where the system has such.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace torchcaps {

// Wishes for the n numbers that follow, before they are first written. Above 32 MB glibc gives memory back to the system,
// so that the gradient of a large W would be handed out anew at every call, by a fault for every 4 KB.
template <class T>
inline void large_pages(T* numbers, int64_t n) {
#if defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = 1 << 21;
  const uintptr_t from = (reinterpret_cast<uintptr_t>(numbers) + kPage - 1) / kPage * kPage;
  const uintptr_t to = reinterpret_cast<uintptr_t>(numbers + n) / kPage * kPage;
  if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);  // a wish: refused, nothing is lost
#else
  (void)numbers, (void)n;
#endif
}

}  // namespace torchcaps
