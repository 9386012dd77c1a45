// Rows of the patches of images, channels last, in bfloat16: copied out for a matrix product, and added up again.
#include <cstdint>
#include <cstring>

#include "parallel.h"

namespace torchcaps {
namespace {

// Patches of K_h × K_w pixels, `step` apart; of each, row k is meant.
struct Sizes {
  int64_t B, H, W, C, K_h, K_w, step, k, threads;
  int64_t rows() const { return (H - K_h) / step + 1; }
  int64_t columns() const { return (W - K_w) / step + 1; }
  int64_t run() const { return K_w * C; }  // numbers that lie side by side, in an image as in a patch
};

// Calls f(where a run begins in the images, where in the patches) for each patch of image b.
template <class F>
void each_run(const Sizes& s, int64_t b, const F& f) {
  for (int64_t y = 0; y < s.rows(); ++y) {
    for (int64_t x = 0; x < s.columns(); ++x) {
      f(((b * s.H + y * s.step + s.k) * s.W + x * s.step) * s.C, ((b * s.rows() + y) * s.columns() + x) * s.run());
    }
  }
}

float widened(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

}  // namespace
}  // namespace torchcaps

using torchcaps::Sizes;

// images [B, H, W, C] to patches [B, H', W', K_w, C].
extern "C" int32_t gather(Sizes s, const uint16_t* images, uint16_t* patches) {
  return !torchcaps::parallel(s.B, s.threads, [&](int64_t b) {
    torchcaps::each_run(s, b, [&](int64_t image, int64_t patch) {
      std::memcpy(patches + patch, images + image, s.run() * sizeof *patches);
    });
  });
}

// The other way round: adds each number of the patches to its pixel, in float32.
extern "C" int32_t scatter(Sizes s, const uint16_t* patches, float* images) {
  return !torchcaps::parallel(s.B, s.threads, [&](int64_t b) {
    torchcaps::each_run(s, b, [&](int64_t image, int64_t patch) {
      for (int64_t n = 0; n < s.run(); ++n) images[image + n] += torchcaps::widened(patches[patch + n]);
    });
  });
}
