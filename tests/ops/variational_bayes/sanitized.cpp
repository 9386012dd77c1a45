// Computes moments of votes on odd sizes with exactly as much memory as it may touch.
#include <cstdio>
#include <vector>

#include SOURCE
#include "../backends/numbers.h"

template <class T, class Forward, class Backward>
bool run(const torchcaps::Sizes& n, bool extras, bool first, bool linear, Forward forward, Backward backward) {
  const int64_t B = n.B, C = n.C, HW = n.H * n.W, kernel = n.Kh * n.Kw, J = n.J;
  const int64_t places = ((n.H - n.Kh) / n.sh + 1) * ((n.W - n.Kw) / n.sw + 1);
  auto pose = numbers<T>(B * C * HW * 16), act = numbers<T>(B * C * HW), weight = numbers<T>(C * kernel * J * NUMBERS);
  for (T& a : act) a = a < 0 ? -a / 2 : a / 2;
  auto offset = numbers<T>(C * kernel * 16), coupling = numbers<T>(B * places * C * kernel * J);
  auto mean = numbers<T>(B * places * J * 16), precision = mean, constant = numbers<T>(B * places * J);
  for (T& p : precision) p = p < 0 ? -p : p;
  auto new_mean = mean, spread = mean, mass = constant;
  auto d_pose = pose, d_act = act, d_weight = weight, d_mean = mean, d_precision = mean, d_constant = constant;
  T *o = extras ? offset.data() : nullptr, *r = extras ? coupling.data() : nullptr;
  torchcaps::States<T> states = {nullptr, nullptr, nullptr, new_mean.data(), spread.data(), mass.data()};
  torchcaps::States<T> given = states, wanted = {};
  if (!first) {
    states.mean = mean.data(), states.precision = precision.data(), states.constant = constant.data();
    wanted = {d_mean.data(), d_precision.data(), d_constant.data(), nullptr, nullptr, nullptr};
  }
  int32_t failed = forward(&n, pose.data(), act.data(), weight.data(), o, &states, r, first ? 1 : 1e-5,
                           linear);
  failed |= backward(&n, pose.data(), act.data(), weight.data(), o, &states, &given, &wanted, first ? nullptr : r,
                     d_pose.data(), d_act.data(), d_weight.data(), first ? 1 : 1e-5, linear);
  for (T g : d_weight) failed |= !(g == g);
  return !failed;
}

int main() {
  // B, T, H, W, K_h, K_w, J, stride: oblong; children without parents; dense; more than a vector of types; no image; one
  // of all; many parents to a child.
  const int64_t sizes[][9] = {{2, 2, 5, 4, 3, 2, 3, 2, 1}, {1, 1, 6, 4, 3, 3, 2, 2, 2}, {3, 63, 1, 1, 1, 1, 7, 1, 1},
                              {2, 3, 4, 4, 3, 3, 19, 1, 1}, {0, 2, 3, 3, 2, 2, 4, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1},
                              {1, 1, 3, 1, 2, 1, 2064, 1, 1}};
  for (const auto& s : sizes) {
    for (int64_t choice = 0; choice < 12; ++choice) {
      const torchcaps::Sizes n = {s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], 1, 1 + choice % 2, 0, 1, 0};
      const bool extras = choice / 2 % 2, first = choice / 4 == 1, linear = choice / 4 == 2;
      const bool good = run<float>(n, extras, first, linear, moments_f32, moments_backward_f32) &&
                        run<double>(n, extras, first, linear, moments_f64, moments_backward_f64);
      if (!good) return 1;
    }
  }
  std::puts("clean");
}
