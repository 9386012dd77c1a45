// Calls EM routing on odd sizes with exactly as much memory as it may touch.
#include <cstdio>
#include <vector>

#include SOURCE
#include "../backends/numbers.h"

template <class T, class Forward, class Backward>
bool run(torchcaps::Sizes n, bool extras, Forward forward, Backward backward) {
  const int64_t B = n.B, C = n.C, HW = n.H * n.W, kernel = n.Kh * n.Kw, J = n.J, n_iters = n.n_iters;
  const int64_t places = ((n.H - n.Kh) / n.sh + 1) * ((n.W - n.Kw) / n.sw + 1);
  const torchcaps::Settings settings = {0.1, 0.01, 1e-7, 1, 1, 1, 1};
  const std::vector<double> lambda(n_iters, 0.3);
  auto pose = numbers<T>(B * C * HW * 16), act = numbers<T>(B * C * HW), weight = numbers<T>(C * kernel * J * NUMBERS);
  for (T& a : act) a = a < 0 ? -a / 2 : a / 2;
  auto beta_u = numbers<T>(J), beta_a = numbers<T>(J), offset = numbers<T>(C * kernel * 16);
  auto mu = numbers<T>(B * places * J * 16), a = numbers<T>(B * places * J), coupling = numbers<T>(B * places * C * kernel * J);
  auto saved = numbers<T>(B * places * (n_iters * 34 + 16) * J);
  auto d_pose = pose, d_act = act, d_weight = weight, d_u = beta_u, d_a = beta_a;
  T *o = extras ? offset.data() : nullptr, *r = extras ? coupling.data() : nullptr;
  int32_t failed = forward(&n, &settings, lambda.data(), pose.data(), act.data(), weight.data(), beta_u.data(), beta_a.data(), o,
                           mu.data(), a.data(), saved.data(), r);
  for (int64_t last = 0; last < 2; ++last) {
    n.last_only = last;
    failed |= backward(&n, &settings, lambda.data(), pose.data(), act.data(), weight.data(), beta_u.data(), beta_a.data(), o,
                       saved.data(), mu.data(), a.data(), r, d_pose.data(), d_act.data(), d_weight.data(), d_u.data(),
                       d_a.data());
  }
  for (T g : d_weight) failed |= !(g == g);
  return !failed;
}

int main() {
  // B, T, H, W, K_h, K_w, J, stride: oblong; children without parents; dense; more than a vector of types; no image; one
  // of all; so many parents to a child that its votes alone are more than are made at once.
  const int64_t sizes[][9] = {{2, 2, 5, 4, 3, 2, 3, 2, 1}, {1, 1, 6, 4, 3, 3, 2, 2, 2}, {3, 63, 1, 1, 1, 1, 7, 1, 1},
                              {2, 3, 4, 4, 3, 3, 19, 1, 1}, {0, 2, 3, 3, 2, 2, 4, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1},
                              {1, 1, 3, 1, 2, 1, 2064, 1, 1}};
  for (const auto& s : sizes) {
    for (int64_t n_iters = 1; n_iters < 4; ++n_iters) {
      for (int64_t choice = 0; choice < 4; ++choice) {
        const torchcaps::Sizes n = {s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8],
                                    n_iters, 1 + choice % 2, choice % 2, choice / 2, 0};
        const bool good = run<float>(n, choice > 1, forward_f32, backward_f32) &&
                          run<double>(n, choice > 1, forward_f64, backward_f64);
        if (!good) return 1;
      }
    }
  }
  std::puts("clean");
}
