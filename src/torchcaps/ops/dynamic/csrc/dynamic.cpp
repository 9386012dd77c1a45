// Dynamic routing that recomputes the votes in registers and never stores them; cpu.py calls it.
//
// Letters are those of routing.py. With V the sum of the outputs so far, a logit is b0 + û·V: all that lives
// from one iteration to the next is V, [B, J, d_out].
#include "backward.h"
#include "few.h"
#include "passes.h"

namespace torchcaps {
namespace {

// Outputs, and the weighted sums s of every iteration, [n_iters, B, J, d_out], for the backward pass.
template <class T>
bool forward(const Problem<T>& p, T* states, T* pose, T* activation, T* coupling) {
  if (are_few(p)) return few_forward(Few<T>(p), states, pose, activation, coupling);
  const int64_t all = p.all(), blocks = p.blocks();
  Buffer<T> u(blocks * p.I * p.d_in), bias(all);
  for (int64_t k = 0; k < all; ++k) bias[k] = splat<T>(p.bias ? p.bias[k] : 0);
  Upper<T> total(p);  // V
  std::fill(total.at(0), total.at(0) + blocks * all, splat<T>(0));
  bool good = lanes_of_u(p, u);
  for (int64_t t = 0; good && t < p.n_iters; ++t) {
    const bool last = t == p.n_iters - 1;
    const auto pass = [&](int64_t block, int64_t i0, int64_t i1, Vec<T>* sum) {
      const Vec<T>* ub = u + block * p.I * p.d_in;
      if (t == 0 && !p.b0 && !(last && coupling)) return even_pass(p, ub, i0, i1, sum);
      const Vec<T>* x[] = {total.at(block)};
      const auto weigh = [&](int64_t i, Vec<T>* b) {
        softmax<T>(p, b);
        if (last && coupling) from_lanes(b, coupling + (block * p.L * p.I + i) * p.J, p.I * p.J, p.images(block), p.J);
        return b;
      };
      weighted_pass(p, ub, i0, i1, 1, x, weigh, sum);
    };
    good = over_lower(p, pass, [&](int64_t block, Vec<T>* s) {
      const int n = p.images(block);
      Buffer<T> v(all), lengths(p.J);
      for (int64_t k = 0; k < all; ++k) s[k] += bias[k];
      from_lanes(s, states + (t * p.B + block * p.L) * all, all, n, all);
      squash<T>(p, s, v.get(), lengths.get());
      for (int64_t k = 0; k < all; ++k) total.at(block)[k] += v[k];
      if (!last) return;
      from_lanes(v.get(), pose + block * p.L * all, all, n, all);
      from_lanes(lengths.get(), activation + block * p.L * p.J, p.J, n, p.J);
    });
  }
  return good;
}

// 0, or 1 where memory ran out.
template <class T>
int32_t forward_or_fail(const Problem<T>& p, T* states, T* pose, T* activation, T* coupling) {
  try {
    return forward(p, states, pose, activation, coupling) ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}
template <class T>
int32_t backward_or_fail(const Problem<T>& p, const Gradients<T>& out) {
  try {
    return backward(p, out) ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace
}  // namespace torchcaps

#define TORCHCAPS_SIZES                                                                                      \
  int64_t B, int64_t I, int64_t J, int64_t d_in, int64_t d_out, int64_t n_iters, int32_t leaky, int64_t threads
#define TORCHCAPS_ROUTING(T, suffix)                                                                              \
  TORCHCAPS_EXPORT int32_t forward_##suffix(TORCHCAPS_SIZES, const T* u, const T* weight, const T* bias,          \
                                            const T* b0, T* states, T* pose, T* activation, T* coupling) {     \
    return torchcaps::forward_or_fail<T>({{B, I, J, d_in, d_out, n_iters, leaky != 0, threads}, u, weight, bias,  \
                                          b0}, states, pose, activation, coupling);                            \
  }                                                                                                               \
  TORCHCAPS_EXPORT int32_t backward_##suffix(                                                                     \
      TORCHCAPS_SIZES, const T* u, const T* weight, const T* b0, const T* states, const T* d_pose,             \
      const T* d_activation, const T* d_coupling, int32_t full, T* du, T* d_weight, T* d_bias, T* d_b0) {      \
    return torchcaps::backward_or_fail<T>(                                                                        \
        {{B, I, J, d_in, d_out, n_iters, leaky != 0, threads}, u, weight, nullptr, b0},                        \
        {states, d_pose, d_activation, d_coupling, full != 0, du, d_weight, d_bias, d_b0});                    \
  }
TORCHCAPS_ROUTING(float, f32)
TORCHCAPS_ROUTING(double, f64)
