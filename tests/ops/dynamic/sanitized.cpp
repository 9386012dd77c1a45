// Calls the routing on odd sizes with exactly as much memory as it may touch.
#include <cstdio>

#include "dynamic.cpp"
#include "../backends/numbers.h"

template <class T, class Forward, class Backward>
bool run(int64_t B, int64_t I, int64_t J, int64_t d_in, int64_t d_out, int64_t n, int extras, int64_t threads,
         Forward forward, Backward backward) {
  auto u = numbers<T>(B * I * d_in), weight = numbers<T>(I * J * d_in * d_out), bias = numbers<T>(J * d_out);
  auto b0 = numbers<T>(I * J), states = numbers<T>(n * B * J * d_out), pose = numbers<T>(B * J * d_out);
  auto activation = numbers<T>(B * J), coupling = numbers<T>(B * I * J);
  auto du = u, d_weight = weight, d_bias = bias, d_b0 = b0;
  T *b = extras ? bias.data() : nullptr, *p = extras ? b0.data() : nullptr;
  T *c = extras ? coupling.data() : nullptr, *dp = extras ? d_b0.data() : nullptr;
  int32_t failed = forward(B, I, J, d_in, d_out, n, extras, threads, u.data(), weight.data(), b, p, states.data(),
                           pose.data(), activation.data(), c);
  for (int32_t full = 0; full < 2; ++full) {
    failed |= backward(B, I, J, d_in, d_out, n, extras, threads, u.data(), weight.data(), p, states.data(),
                       pose.data(), activation.data(), c, full, du.data(), d_weight.data(), d_bias.data(), dp);
  }
  for (T x : d_weight) failed |= !(x == x);
  return !failed;
}

int main() {
  const int64_t sizes[][5] = {{5, 63, 7, 3, 13}, {0, 5, 4, 3, 6}, {1, 1, 1, 1, 1}, {67, 31, 3, 9, 1}, {17, 5, 2, 19, 37},
                              {70, 9, 10, 8, 16}, {3, 0, 4, 3, 6}, {3, 5, 4, 0, 6}, {3, 5, 0, 3, 6}, {3, 5, 4, 3, 0},
                              {1, 37, 5, 3, 16}, {2, 17, 3, 2, 33}, {1, 5, 4, 3, 0}, {1, 0, 4, 3, 16}, {1, 5, 0, 3, 16},
                              {4, 3001, 9, 5, 40}};
  for (const auto& s : sizes) {
    for (int64_t n = 1; n < 4; ++n) {
      for (int extras = 0; extras < 2; ++extras) {
        for (int64_t threads = 1; threads < 3; ++threads) {
          const bool good = run<float>(s[0], s[1], s[2], s[3], s[4], n, extras, threads, forward_f32, backward_f32) &&
                            run<double>(s[0], s[1], s[2], s[3], s[4], n, extras, threads, forward_f64, backward_f64);
          if (!good) return 1;
        }
      }
    }
  }
  std::puts("clean");
}
