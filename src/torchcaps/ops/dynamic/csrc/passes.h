// Dynamic routing: its tensors, squash, and the passes over the lower capsules.
//
// The lanes of a vector hold as many images, a block. Votes are made and used up in registers and the nearest cache.
// Sums over lower capsules are cut into parts by the sizes alone, never by the number of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel.h"
#include "simd.h"

namespace torchcaps {
namespace {

constexpr int kTile = kRegisters / 2;     // numbers of a vote that are accumulated at once
constexpr int64_t kBlocksTogether = 4;    // blocks that share the matrices while these are in L2
constexpr int64_t kChunkBytes = 1 << 18;  // of matrices, to stay in L2
constexpr int64_t kParts = 16;            // cuts of the sum over lower capsules, where blocks are few

struct Sizes {
  int64_t B, I, J, d_in, d_out, n_iters;
  bool leaky;
  int64_t threads;
  int64_t all() const { return J * d_out; }  // numbers in the votes of one capsule
};

template <class T>
struct Problem : Sizes {
  static constexpr int L = kLanes<T>;
  const T *u, *weight, *bias, *b0;
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

// ---- squash and its gradient, as ops/squash.py has them: exact at 0 and for the largest and smallest numbers ----

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

// ---- passes ----

// Votes of n lower capsules, E numbers of each from `at` on, and their products with n_x other vectors:
// products[g][k][j] += û_gj · x_k[j].
template <class T, int E>
void vote(const Sizes& p, const Vec<T>* u, const T* w, int64_t n, int64_t at, Vec<T>* votes, int n_x,
          const Vec<T>* const* x, Vec<T>* products) {
  for (int64_t j = 0; j < p.J; ++j) {
    for (int64_t g = 0; g < n; ++g) {
      Vec<T> acc[E];
#pragma GCC unroll 16
      for (int e = 0; e < E; ++e) acc[e] = splat<T>(0);
      const T* row = w + (g * p.J + j) * p.d_in * p.d_out + at;
      for (int64_t d = 0; d < p.d_in; ++d, row += p.d_out) {
        __builtin_prefetch(row + p.d_in * p.d_out);  // of the next upper capsule
        const Vec<T> ud = u[g * p.d_in + d];
#pragma GCC unroll 16
        for (int e = 0; e < E; ++e) acc[e] += ud * row[e];
      }
      if (votes) {
        Vec<T>* to = votes + (g * p.J + j) * p.d_out + at;
#pragma GCC unroll 16
        for (int e = 0; e < E; ++e) to[e] = acc[e];
      }
      for (int k = 0; k < n_x; ++k) {
        const Vec<T>* xk = opaque(x[k] + j * p.d_out + at);
        Vec<T> part[4] = {splat<T>(0), splat<T>(0), splat<T>(0), splat<T>(0)};
#pragma GCC unroll 16
        for (int e = 0; e < E; ++e) part[e % 4] += acc[e] * xk[e];
        products[(g * n_x + k) * p.J + j] += (part[0] + part[1]) + (part[2] + part[3]);
      }
    }
  }
}

// Logits become couplings, eq. 3.
template <class T>
void softmax(const Sizes& p, Vec<T>* b) {
  Vec<T> most = splat<T>(p.leaky ? 0 : -std::numeric_limits<T>::infinity());
  for (int64_t j = 0; j < p.J; ++j) most = b[j] > most ? b[j] : most;
  Vec<T> sum = p.leaky ? exp_of_negative<T>(-most) : splat<T>(0);
  for (int64_t j = 0; j < p.J; ++j) sum += b[j] = exp_of_negative<T>(b[j] - most);
  const Vec<T> share = T(1) / sum;
  for (int64_t j = 0; j < p.J; ++j) b[j] *= share;
}

// The gradient of couplings becomes that of the logits.
template <class T>
void softmax_backward(const Sizes& p, const Vec<T>* c, Vec<T>* dc) {
  Vec<T> mean = splat<T>(0);
  for (int64_t j = 0; j < p.J; ++j) mean += c[j] * dc[j];
  for (int64_t j = 0; j < p.J; ++j) dc[j] = c[j] * (dc[j] - mean);
}

// Logits start from the b0 ones, and from 0 where there are none.
template <class T>
void start(const Problem<T>& p, int64_t i, Vec<T>* b) {
  for (int64_t j = 0; j < p.J; ++j) b[j] = splat(p.b0 ? p.b0[i * p.J + j] : T(0));
}

// sum += Σ_ij û_ij / places: the first iteration, when nothing is known, needs no couplings.
template <class T>
void even_pass(const Problem<T>& p, const Vec<T>* u, int64_t i0, int64_t i1, Vec<T>* sum) {
  const T share = T(1) / static_cast<T>(p.J + p.leaky);
  stretches<kTile>(p.d_out, [&](auto size, int64_t at) {
    constexpr int E = decltype(size)::value;
    for (int64_t j = 0; j < p.J; ++j) {
      Vec<T> acc[E];
#pragma GCC unroll 16
      for (int e = 0; e < E; ++e) acc[e] = splat<T>(0);
      for (int64_t i = i0; i < i1; ++i) {
        const T* row = p.matrices(i) + j * p.d_in * p.d_out + at;
        for (int64_t d = 0; d < p.d_in; ++d, row += p.d_out) {
          __builtin_prefetch(row + 4 * p.d_in * p.all());  // no hardware foresees strides beyond a page
          const Vec<T> ud = u[i * p.d_in + d];
#pragma GCC unroll 16
          for (int e = 0; e < E; ++e) acc[e] += ud * row[e];
        }
      }
#pragma GCC unroll 16
      for (int e = 0; e < E; ++e) sum[j * p.d_out + at + e] += acc[e] * share;
    }
  });
}

// sum += Σ_ij weight_ij û_ij over the lower capsules i0 ... i1 of one block. `weigh(i, products)` makes the weights
// of capsule i out of the products of its votes with the n_x vectors x, in place, and says where they lie.
template <class T, class Weigh>
void weighted_pass(const Problem<T>& p, const Vec<T>* u, int64_t i0, int64_t i1, int n_x, const Vec<T>* const* x,
                   const Weigh& weigh, Vec<T>* sum) {
  Buffer<T> votes(p.all()), products(n_x * p.J);
  for (int64_t i = i0; i < i1; ++i) {
    std::fill(products.get(), products + n_x * p.J, splat<T>(0));
    start(p, i, products.get());
    stretches<kTile>(p.d_out, [&](auto size, int64_t at) {
      vote<T, decltype(size)::value>(p, u + i * p.d_in, p.matrices(i), 1, at, votes.get(), n_x, x, products.get());
    });
    const Vec<T>* weights = weigh(i, products.get());
    for (int64_t j = 0; j < p.J; ++j) {
      const Vec<T> w = weights[j];
#pragma GCC unroll 4
      for (int64_t e = j * p.d_out; e < (j + 1) * p.d_out; ++e) sum[e] += w * votes[e];
    }
  }
}

// Calls pass(block, i0, i1, sum) for all lower capsules of all blocks, and hands each block's total to finish(block,
// sum). A chunk of matrices is read from far away once for several blocks.
template <class T, class Pass, class Finish>
bool over_lower(const Problem<T>& p, const Pass& pass, const Finish& finish) {
  const int64_t all = p.all(), blocks = p.blocks();
  const int64_t parts = std::max<int64_t>(1, std::min(p.I, 4 * kParts / std::max<int64_t>(4, blocks)));
  const int64_t teams = (blocks + kBlocksTogether - 1) / kBlocksTogether;
  const int64_t bytes = std::max<int64_t>(1, p.d_in * all * static_cast<int64_t>(sizeof(T)));
  const int64_t chunk = std::max<int64_t>(1, kChunkBytes / bytes);
  Upper<T> partial(p, parts);
  bool good = parallel(parts * teams, p.threads, [&](int64_t task) {
    const int64_t part = task / teams, first = task % teams * kBlocksTogether;
    const int64_t last = std::min(first + kBlocksTogether, blocks), end = (part + 1) * p.I / parts;
    for (int64_t block = first; block < last; ++block) {
      std::fill(partial.at(block, part), partial.at(block, part) + all, splat<T>(0));
    }
    Buffer<T> sum(all);
    for (int64_t i = part * p.I / parts; i < end; i += chunk) {
      for (int64_t block = first; block < last; ++block) {
        std::fill(sum.get(), sum + all, splat<T>(0));
        pass(block, i, std::min(i + chunk, end), sum.get());
        for (int64_t k = 0; k < all; ++k) partial.at(block, part)[k] += sum[k];
      }
    }
  });
  return good && parallel(blocks, p.threads, [&](int64_t block) {
           for (int64_t part = 1; part < parts; ++part) {
             for (int64_t k = 0; k < all; ++k) partial.at(block)[k] += partial.at(block, part)[k];
           }
           finish(block, partial.at(block));
         });
}

}  // namespace
}  // namespace torchcaps
