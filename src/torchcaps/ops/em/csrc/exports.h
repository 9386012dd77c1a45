// The functions of a library of EM routing, for one kind of poses. A source includes it after all other headers.
#pragma once

// lambda [n_iters]; pose [B, C, H, W, 16], act [B, C, H, W], weight [C, Kh, Kw, J, Pose::kNumbers];
// offset [C, Kh, Kw, 16] or null; out_pose [B, J, Ho, Wo, 16], out_act [B, J, Ho, Wo];
// saved [B, Ho, Wo, 34 n_iters + 16, J] or null; coupling and its gradient [B, Ho, Wo, C·Kh·Kw, J] or null.
// All contiguous. Returns 0, or 1 where memory ran out.
#define TORCHCAPS_EM(Pose, T, suffix)                                                                               \
  TORCHCAPS_EXPORT int32_t forward_##suffix(                                                                        \
      const torchcaps::Sizes* sizes, const torchcaps::Settings* settings, const double* lambda, const T* pose,      \
      const T* act, const T* weight, const T* beta_u, const T* beta_a, const T* offset, T* out_pose, T* out_act,    \
      T* saved, T* coupling) {                                                                                      \
    return torchcaps::forward<T, Pose>(*sizes, *settings, lambda, pose, act, weight, beta_u, beta_a, offset,        \
                                       out_pose, out_act, saved, coupling);                                         \
  }                                                                                                                 \
  TORCHCAPS_EXPORT int32_t backward_##suffix(                                                                       \
      const torchcaps::Sizes* sizes, const torchcaps::Settings* settings, const double* lambda, const T* pose,      \
      const T* act, const T* weight, const T* beta_u, const T* beta_a, const T* offset, const T* saved,             \
      const T* grad_pose, const T* grad_act, const T* d_coupling, T* d_pose, T* d_act, T* d_weight, T* d_beta_u,    \
      T* d_beta_a) {                                                                                                \
    return torchcaps::backward<T, Pose>(*sizes, *settings, lambda, pose, act, weight, beta_u, beta_a, offset,       \
                                        saved, grad_pose, grad_act, d_coupling, d_pose, d_act, d_weight, d_beta_u,  \
                                        d_beta_a);                                                                  \
  }
