// Numbers between -1 and 1 in exactly as much memory as they take.
#pragma once

#include <cstdint>
#include <vector>

template <class T>
std::vector<T> numbers(int64_t count) {
  std::vector<T> x(count);
  for (int64_t k = 0; k < count; ++k) x[k] = static_cast<T>(k * 7919 % 1009) / 500 - 1;
  return x;
}
