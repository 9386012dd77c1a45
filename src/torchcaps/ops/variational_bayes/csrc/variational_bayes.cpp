// The moments of votes that are never stored, by the passes of em.cpp: for variational Bayes, Heinsen's routing of
// matrices, and inverted attention.
#include "moments.h"
#include "poses.h"

// pose [B, C, H, W, 16], act [B, C, H, W], weight [C, Kh, Kw, J, 16], offset [C, Kh, Kw, 16] or null;
// coupling and its gradient [B, Ho, Wo, C·Kh·Kw, J] or null; prior is above 0; linear says whether logits are products
// with the votes. All contiguous. Returns 0, or 1 where memory ran out.
#define TORCHCAPS_MOMENTS(T, suffix)                                                                                  \
  TORCHCAPS_EXPORT int32_t moments_##suffix(const torchcaps::Sizes* sizes, const T* pose, const T* act,               \
                                            const T* weight, const T* offset, const torchcaps::States<T>* states,     \
                                            T* coupling, double prior, int32_t linear) {                              \
    const auto run = linear ? torchcaps::moments<T, torchcaps::LinearMatrices>                                        \
                            : torchcaps::moments<T, torchcaps::Matrices>;                                             \
    return run(*sizes, pose, act, weight, offset, *states, coupling, prior);                                          \
  }                                                                                                                   \
  TORCHCAPS_EXPORT int32_t moments_backward_##suffix(                                                                 \
      const torchcaps::Sizes* sizes, const T* pose, const T* act, const T* weight, const T* offset,                   \
      const torchcaps::States<T>* states, const torchcaps::States<T>* given, const torchcaps::States<T>* wanted,      \
      const T* d_coupling, T* d_pose, T* d_act, T* d_weight, double prior, int32_t linear) {                          \
    const auto run = linear ? torchcaps::moments_backward<T, torchcaps::LinearMatrices>                               \
                            : torchcaps::moments_backward<T, torchcaps::Matrices>;                                    \
    return run(*sizes, pose, act, weight, offset, *states, *given, *wanted, d_coupling, d_pose, d_act, d_weight,      \
               prior);                                                                                                \
  }

TORCHCAPS_MOMENTS(float, f32)
TORCHCAPS_MOMENTS(double, f64)
