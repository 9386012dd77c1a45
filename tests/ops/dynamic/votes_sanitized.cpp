// Routes votes of odd sizes with exactly as much memory as it may touch.
#include <cstdio>
#include <vector>

#include SOURCE
#include "../backends/numbers.h"

template <class T, class Forward, class Backward>
bool run(const torchcaps::Extents& n, bool with_bias, Forward forward, Backward backward) {
  const int64_t all = n.J * n.d_out;
  auto votes = numbers<T>(n.B * n.types * all * n.P), bias = numbers<T>(all), pose = numbers<T>(n.B * all * n.P);
  auto activation = numbers<T>(n.B * n.J * n.P), d_votes = votes, d_bias = bias, d_pose = pose, d_activation = activation;
  T* b = with_bias ? bias.data() : nullptr;
  int32_t failed = forward(&n, votes.data(), b, pose.data(), activation.data());
  failed |= backward(&n, votes.data(), b, d_pose.data(), d_activation.data(), d_votes.data(), d_bias.data());
  for (T g : d_votes) failed |= !(g == g);
  return !failed;
}

int main() {
  // B, types, J, d_out, places: fewer places than lanes; more; one of all; no image; no lower type; many types.
  const int64_t sizes[][5] = {{2, 3, 2, 5, 7}, {3, 2, 3, 4, 37}, {1, 1, 1, 1, 1}, {0, 2, 2, 3, 4}, {2, 0, 3, 2, 5},
                              {2, 19, 17, 3, 16}};
  for (const auto& s : sizes) {
    for (int64_t n_iters = 1; n_iters < 4; ++n_iters) {
      for (int64_t choice = 0; choice < 16; ++choice) {
        const torchcaps::Extents n = {s[0], s[1], s[2], s[3], s[4], n_iters, choice % 2, choice / 2 % 2, choice / 4 % 2,
                                      1 + choice / 8};
        const bool good = run<float>(n, choice / 8, forward_f32, backward_f32) &&
                          run<double>(n, choice / 8, forward_f64, backward_f64);
        if (!good) return 1;
      }
    }
  }
  std::puts("clean");
}
