// The tensors of dynamic routing, and how they lie in vectors: the lanes hold as many images, a block.
#pragma once

#include <algorithm>

#include "parallel.h"
#include "simd.h"

namespace torchcaps {
namespace {

struct Sizes {
  int64_t B, I, J, d_in, d_out, n_iters;
  bool leaky;
  int64_t threads;
  int64_t all() const { return J * d_out; }  // numbers in the votes of one capsule
};

template <class T>
struct Problem : Sizes {
  static constexpr int L = kLanes<T>;
  const T *u, *weight, *bias, *prior;
  int64_t blocks() const { return (B + L - 1) / L; }
  int images(int64_t block) const { return static_cast<int>(std::min<int64_t>(L, B - block * L)); }
  const T* matrices(int64_t i) const { return weight + i * J * d_in * d_out; }
};

// One number or vector for every block and every number of the upper capsules.
template <class T>
struct Upper {
  explicit Upper(const Problem<T>& p, int64_t copies = 1)
      : all(p.all()), blocks(p.blocks()), data(copies * blocks * all) {}
  Vec<T>* at(int64_t block, int64_t copy = 0) { return data + (copy * blocks + block) * all; }
  int64_t all, blocks;
  Buffer<T> data;
};

// u of every block, [blocks, I, d_in] vectors.
template <class T>
bool lanes_of_u(const Problem<T>& p, Buffer<T>& u) {
  const int64_t width = p.I * p.d_in, step = 4096, columns = (width + step - 1) / step;
  return parallel(p.blocks() * columns, p.threads, [&](int64_t task) {
    const int64_t block = task / columns, from = task % columns * step;
    to_lanes(p.u + block * p.L * width + from, width, p.images(block), std::min(step, width - from),
             u + (block * width + from));
  });
}

}  // namespace
}  // namespace torchcaps
