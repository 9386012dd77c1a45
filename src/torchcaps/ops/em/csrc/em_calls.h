// The functions of a library of EM routing, for one kind of poses.
#pragma once

#include "em_backward.h"
#include "em_forward.h"

namespace torchcaps {
namespace {

template <class T, class Pose>
int32_t forward(const int64_t* n, const double* x, const T* pose, const T* act, const T* weight, const T* beta_u,
                const T* beta_a, const T* offset, T* out_pose, T* out_act, T* saved, T* coupling) {
  try {
    Forward<T, Pose> op(n, x, pose, act, weight, beta_u, beta_a, offset);
    op.out_pose = out_pose, op.out_act = out_act, op.saved = saved, op.coupling = coupling;
    return op.run() ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

template <class T, class Pose>
int32_t backward(const int64_t* n, const double* x, const T* pose, const T* act, const T* weight, const T* beta_u,
                 const T* beta_a, const T* offset, const T* saved, const T* grad_pose, const T* grad_act,
                 const T* d_coupling, T* d_pose, T* d_act, T* d_weight, T* d_beta_u, T* d_beta_a) {
  try {
    Backward<T, Pose> op(n, x, pose, act, weight, beta_u, beta_a, offset);
    op.saved = saved, op.grad_pose = grad_pose, op.grad_act = grad_act, op.d_coupling = d_coupling;
    op.d_pose = d_pose, op.d_act = d_act;
    return op.run(d_weight, d_beta_u, d_beta_a) ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace
}  // namespace torchcaps

using namespace torchcaps;

// n: B, T, H, W, K_h, K_w, J, stride rows and columns, n_iters, compete over positions, start over types,
//    gradient of the last iteration only, threads.
// x: damping, variance floor, mass floor, ratio, scales of β_a, β_u and Σ log σ, then λ of every iteration.
// pose [B, T, H, W, 16], act [B, T, H, W], weight [T, K_h, K_w, J, Pose::kNumbers], offset [T, K_h, K_w, 16] or null;
// out_pose [B, J, H', W', 16], out_act [B, J, H', W']; saved [B, H', W', 34 n_iters + 16, J] or null;
// coupling and its gradient [B, H', W', T·K_h·K_w, J] or null. All contiguous. Returns 0, or 1 where memory ran out.
#define TORCHCAPS_EXPORT extern "C" __attribute__((visibility("default")))
#define TORCHCAPS_EM(Pose, T, suffix)                                                                               \
  TORCHCAPS_EXPORT int32_t forward_##suffix(const int64_t* n, const double* x, const T* pose, const T* act,         \
                                            const T* weight, const T* beta_u, const T* beta_a, const T* offset,     \
                                            T* out_pose, T* out_act, T* saved, T* coupling) {                       \
    return forward<T, Pose>(n, x, pose, act, weight, beta_u, beta_a, offset, out_pose, out_act, saved, coupling);   \
  }                                                                                                                 \
  TORCHCAPS_EXPORT int32_t backward_##suffix(const int64_t* n, const double* x, const T* pose, const T* act,        \
                                             const T* weight, const T* beta_u, const T* beta_a, const T* offset,    \
                                             const T* saved, const T* grad_pose, const T* grad_act,                 \
                                             const T* d_coupling, T* d_pose, T* d_act, T* d_weight, T* d_beta_u,    \
                                             T* d_beta_a) {                                                         \
    return backward<T, Pose>(n, x, pose, act, weight, beta_u, beta_a, offset, saved, grad_pose, grad_act,           \
                             d_coupling, d_pose, d_act, d_weight, d_beta_u, d_beta_a);                              \
  }
