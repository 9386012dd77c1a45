// Calls the convolution of few places on odd sizes with exactly as much memory as it may touch.
#include <cstdio>
#include <vector>

#include "few_places.cpp"
#include "numbers.h"

template <class T, class Convolve>
bool run(const int64_t (&s)[7], int64_t lanes, bool bias, int64_t threads, Convolve convolve) {
  const int64_t B = s[0], H = s[1], W = s[2], C = s[3], N = s[4] * lanes, side = s[5], stride = s[6];
  const int64_t out_h = (H - side) / stride + 1, out_w = (W - side) / stride + 1;
  auto x = numbers<T>(B * H * W * C), weight = numbers<T>(side * side * C * N), b = numbers<T>(N), y = numbers<T>(B * out_h * out_w * N);
  const int32_t failed = convolve(B, H, W, C, N, side, side, stride, out_h, out_w, threads, x.data(), weight.data(),
                                  bias ? b.data() : nullptr, y.data());
  for (T number : y) {
    if (!(number == number)) return false;
  }
  return !failed;
}

int main() {
  const int64_t sizes[][7] = {{1, 20, 20, 7, 4, 9, 2}, {3, 5, 8, 300, 1, 2, 1}, {2, 9, 7, 129, 5, 3, 3},
                              {1, 1, 1, 1, 11, 1, 1},  {5, 4, 4, 2, 3, 4, 1},   {2, 6, 6, 0, 2, 3, 1}};
  for (const auto& s : sizes) {
    for (int bias = 0; bias < 2; ++bias) {
      for (int64_t threads = 1; threads < 4; ++threads) {
        if (!run<float>(s, lanes_f32(), bias, threads, convolve_f32)) return 1;
        if (!run<double>(s, lanes_f64(), bias, threads, convolve_f64)) return 1;
      }
    }
  }
  std::puts("clean");
}
