// squash and its gradient, as ops/squash.py has them: exact at 0 and for the largest and smallest numbers.
#pragma once

#include <cmath>

#include "dynamic_sizes.h"

namespace torchcaps {
namespace {

// Length of s, its direction (0 for the zero vector), and q = min(n, 1/n), with which squash neither overflows nor
// vanishes: ‖v‖ = n² / (1 + n²), ‖v‖ / n = q / (1 + q²).
template <class T>
struct Polar {
  Polar(const Vec<T>* s, int64_t d_out, Vec<T>* direction) {
    const Vec<T> zero = splat<T>(0), one = splat<T>(1);
    Vec<T> largest = zero;
    for (int64_t e = 0; e < d_out; ++e) {
      const Vec<T> size = s[e] < zero ? -s[e] : s[e];
      largest = largest >= size ? largest : size;
    }
    const Vec<T> scale = largest == zero ? one : largest;
    Vec<T> squared = zero;
    for (int64_t e = 0; e < d_out; ++e) {
      direction[e] = s[e] / scale;
      squared += direction[e] * direction[e];
    }
    Vec<T> length = squared == zero ? one : squared;
    for (int l = 0; l < kLanes<T>; ++l) length[l] = std::sqrt(length[l]);
    for (int64_t e = 0; e < d_out; ++e) direction[e] /= length;
    const Vec<T> n = squared == zero ? zero : length * scale;  // of NaN it is NaN
    is_long = n > one;
    q = is_long ? one / n : n;
    squashed = (is_long ? one : q * q) / (one + q * q);
  }
  Int<T> is_long;
  Vec<T> q, squashed;
};

template <class T>
void squash(const Sizes& p, const Vec<T>* s, Vec<T>* v, Vec<T>* lengths) {
  for (int64_t j = 0; j < p.J; ++j) {
    Vec<T>* vj = v + j * p.d_out;
    const Polar<T> polar(s + j * p.d_out, p.d_out, vj);
    for (int64_t e = 0; e < p.d_out; ++e) vj[e] *= polar.squashed;
    lengths[j] = polar.squashed;
  }
}

// ds from dv and, where given, the gradient of the length.
template <class T>
void squash_backward(const Sizes& p, const Vec<T>* s, const Vec<T>* dv, const Vec<T>* dlength, Vec<T>* ds) {
  Buffer<T> direction(p.d_out);
  for (int64_t j = 0; j < p.J; ++j) {
    const Vec<T>* dvj = dv + j * p.d_out;
    const Polar<T> polar(s + j * p.d_out, p.d_out, direction.get());
    const Vec<T> q = polar.q, below = T(1) + q * q, across = q / below;
    // Along s it is d‖v‖/dn = 2n / (1 + n²)², across it ‖v‖/n.
    const Vec<T> along = polar.is_long ? 2 * across * across * q : 2 * across / below;
    Vec<T> radial = splat<T>(0);
    for (int64_t e = 0; e < p.d_out; ++e) radial += direction[e] * dvj[e];
    const Vec<T> outward = along * (dlength ? radial + dlength[j] : radial);
    for (int64_t e = 0; e < p.d_out; ++e) {
      ds[j * p.d_out + e] = across * (dvj[e] - radial * direction[e]) + outward * direction[e];
    }
  }
}

}  // namespace
}  // namespace torchcaps
