// Calls the products number by number on odd sizes with exactly as much memory as they may touch.
#include <cstdio>
#include <vector>

#include "elementwise.cpp"
#include "../backends/numbers.h"

template <class T, class Multiply>
bool run(const int64_t (&s)[4], bool transposed, int64_t threads, Multiply multiply) {
  const int64_t M = s[0], N = s[1], K = s[2], D = s[3];
  const auto a = numbers<T>(M * K * D), b = numbers<T>(K * N * D);
  std::vector<T> y(M * N * D, static_cast<T>(1e9));
  const int32_t failed = transposed ? multiply(M, N, K, D, threads, 1, M, 1, K, N, 1, a.data(), b.data(), y.data())
                                    : multiply(M, N, K, D, threads, K, 1, N, 1, 1, M, a.data(), b.data(), y.data());
  for (T number : y) {
    if (!(number < static_cast<T>(1e6))) return false;
  }
  return !failed;
}

int main() {
  const int64_t sizes[][4] = {{1, 1, 1, 1}, {9, 6, 5, 33}, {17, 11, 2, 64}, {3, 23, 40, 7}};
  for (const auto& s : sizes) {
    for (int transposed = 0; transposed < 2; ++transposed) {
      for (int64_t threads = 1; threads < 4; ++threads) {
        if (!run<float>(s, transposed, threads, elementwise_f32)) return 1;
        if (!run<double>(s, transposed, threads, elementwise_f64)) return 1;
      }
    }
  }
  std::puts("clean");
}
