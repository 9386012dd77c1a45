// Dynamic routing that recomputes the votes in registers and never stores them; dynamic.py calls it.
//
// The lanes of a vector hold as many images: a block. Letters are those of ops/dynamic.py. With V the sum of
// the outputs so far, a logit is prior + û·V: all that lives from one iteration to the next is V, [B, J, d_out].
//
// Sums over lower capsules are cut into parts by the sizes alone, never by the number of threads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "parallel.h"
#include "simd.h"

namespace torchcaps {
namespace {

constexpr int kTile = kRegisters / 2;      // numbers of a vote that are accumulated at once
constexpr int kRows = kRegisters / 4;      // rows of a gradient's tile that are accumulated at once
constexpr int kGroup = 2;                  // lower capsules whose votes are held in L1 at once
constexpr int kGradGroup = 4;              // the same where only their couplings are held
constexpr int64_t kBlocksTogether = 4;     // blocks that share the matrices while these are in L2
constexpr int64_t kChunkBytes = 1 << 18;   // of matrices, to stay in L2
constexpr int64_t kParts = 16;             // cuts of the sum over lower capsules, where blocks are few

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
  Upper(const Problem<T>& p, int64_t copies = 1) : all(p.all()), blocks(p.blocks()), data(copies * blocks * all) {}
  Vec<T>* at(int64_t block, int64_t copy = 0) { return data + (copy * blocks + block) * all; }
  int64_t all, blocks;
  Buffer<T> data;
};

template <class T>
bool lanes_of_u(const Problem<T>& p, Buffer<T>& u) {
  const int64_t width = p.I * p.d_in, step = 4096, columns = (width + step - 1) / step;
  return parallel(p.blocks() * columns, p.threads, [&](int64_t task) {
    const int64_t block = task / columns, from = task % columns * step;
    to_lanes(p.u + block * p.L * width + from, width, p.images(block), std::min(step, width - from),
             u + (block * width + from));
  });
}

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
        const Vec<T>* xk = x[k] + j * p.d_out + at;
        Vec<T> part[2] = {splat<T>(0), splat<T>(0)};
#pragma GCC unroll 16
        for (int e = 0; e < E; ++e) part[e % 2] += acc[e] * xk[e];
        products[(g * n_x + k) * p.J + j] += part[0] + part[1];
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

// Products start from the prior logits in place `k`, and from 0 elsewhere.
template <class T>
void start(const Problem<T>& p, int64_t i, int64_t n, int n_x, int k, Vec<T>* products) {
  std::fill(products, products + n * n_x * p.J, splat<T>(0));
  for (int64_t g = 0; p.prior && g < n; ++g) {
    for (int64_t j = 0; j < p.J; ++j) products[(g * n_x + k) * p.J + j] = splat(p.prior[(i + g) * p.J + j]);
  }
}

// sum += Σ over a group of weights[g][j] û_gj
template <class T, int N>
void combine(const Sizes& p, const Vec<T>* votes, const Vec<T>* const* weights, Vec<T>* sum) {
  for (int64_t j = 0; j < p.J; ++j) {
    Vec<T> w[N];
    for (int g = 0; g < N; ++g) w[g] = weights[g][j];
    for (int64_t e = j * p.d_out; e < (j + 1) * p.d_out; ++e) {
      Vec<T> s = w[0] * votes[e];
      for (int g = 1; g < N; ++g) s += w[g] * votes[g * p.all() + e];
      sum[e] += s;
    }
  }
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
  Buffer<T> votes(kGroup * p.all()), products(kGroup * n_x * p.J);
  for (int64_t i = i0; i < i1; i += kGroup) {
    const int64_t n = std::min<int64_t>(kGroup, i1 - i);
    start(p, i, n, n_x, 0, products.get());
    stretches<kTile>(p.d_out, [&](auto size, int64_t at) {
      vote<T, decltype(size)::value>(p, u + i * p.d_in, p.matrices(i), n, at, votes.get(), n_x, x, products.get());
    });
    const Vec<T>* weights[kGroup];
    for (int64_t g = 0; g < n; ++g) weights[g] = weigh(i + g, products + g * n_x * p.J);
    if (n == kGroup) {
      combine<T, kGroup>(p, votes.get(), weights, sum);
    } else {
      for (int64_t g = 0; g < n; ++g) combine<T, 1>(p, votes + g * p.all(), weights + g, sum);
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
  const int64_t chunk = std::max<int64_t>(kGroup, kChunkBytes / bytes / kGroup * kGroup);
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

// Length of s, its direction (0 for the zero vector), and q = min(n, 1/n), with which squash neither overflows nor
// vanishes: ‖v‖ = n² / (1 + n²), ‖v‖ / n = q / (1 + q²).
template <class T>
struct Polar {
  Polar(const Vec<T>* s, int64_t d_out, Vec<T>* direction) {
    const Vec<T> zero = splat<T>(0), one = splat<T>(1);
    Vec<T> largest = zero;
    for (int64_t e = 0; e < d_out; ++e) {
      const Vec<T> size = s[e] < zero ? -s[e] : s[e];
      largest = largest >= size ? largest : size;  // NaN is taken over
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
    const Vec<T> n = largest == zero ? zero : length * scale;
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

// Outputs, and the weighted sums s of every iteration, [n_iters, B, J, d_out], for the backward pass.
template <class T>
bool forward(const Problem<T>& p, T* states, T* pose, T* activation, T* coupling) {
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
      if (t == 0 && !p.prior && !coupling) return even_pass(p, ub, i0, i1, sum);
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

// What flows back from one iteration: û_ij gets c_ij ds_j + db_ij V_j.
template <class T>
struct Gradients {
  const T *states, *d_pose, *d_activation, *d_coupling;
  bool full;
  T *du, *d_weight, *d_bias, *d_prior;
};

// dvotes = Σ_k coefficients[g][k][j] x_k[j], E numbers from `at` on; and du += W dvotes.
template <class T, int E>
void spread(const Sizes& p, const T* w, int64_t n, int64_t at, int n_x, const Vec<T>* const* x,
            const Vec<T>* coefficients, int64_t stride, Vec<T>* dvotes, Vec<T>* du) {
  for (int64_t j = 0; j < p.J; ++j) {
    for (int64_t g = 0; g < n; ++g) {
      Vec<T> dv[E];
#pragma GCC unroll 16
      for (int e = 0; e < E; ++e) dv[e] = splat<T>(0);
      for (int k = 0; k < n_x; ++k) {
        const Vec<T> c = coefficients[(g * n_x + k) * p.J + j];
        const Vec<T>* xk = x[k] + j * p.d_out + at;
#pragma GCC unroll 16
        for (int e = 0; e < E; ++e) dv[e] += c * xk[e];
      }
      Vec<T>* to = dvotes + g * stride + j * p.d_out + at;
#pragma GCC unroll 16
      for (int e = 0; e < E; ++e) to[e] = dv[e];
      const T* row = w + (g * p.J + j) * p.d_in * p.d_out + at;
      for (int64_t d = 0; d < p.d_in; ++d, row += p.d_out) {
        Vec<T> part[2] = {splat<T>(0), splat<T>(0)};
#pragma GCC unroll 16
        for (int e = 0; e < E; ++e) part[e % 2] += dv[e] * row[e];
        du[g * p.d_in + d] += part[0] + part[1];
      }
    }
  }
}

// The gradient of N rows of one capsule's matrices: Σ over images of u_d dvotes, C vectors of the latter.
template <class T, int N, int C>
void outer(const Vec<T>* u, const T* rows, int64_t stride, int images, Vec<T> (&acc)[N][C]) {
  const T* scalars = reinterpret_cast<const T*>(u);
  for (int l = 0; l < images; ++l, rows += stride) {
    Vec<T> x[C];
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) x[c] = load(rows + c * kLanes<T>);
#pragma GCC unroll 8
    for (int d = 0; d < N; ++d) {
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) acc[d][c] += x[c] * scalars[d * kLanes<T> + l];
    }
  }
}

// d_weight[j][d0 + d][e] += acc, whose lanes run over (j, e) from `at` on.
template <class T, int N>
void add_rows(const Sizes& p, const Vec<T> (&acc)[N], int64_t d0, int64_t at, T* d_weight) {
  constexpr int L = kLanes<T>;
  const int64_t j = at / p.d_out, e = at % p.d_out;
  if (e + L <= p.d_out) {
    for (int d = 0; d < N; ++d) {
      T* to = d_weight + (j * p.d_in + d0 + d) * p.d_out + e;
      store(to, load(to) + acc[d]);
    }
    return;
  }
  for (int64_t k = at; k < std::min(at + L, p.all()); ++k) {
    T* to = d_weight + (k / p.d_out * p.d_in + d0) * p.d_out + k % p.d_out;
    for (int d = 0; d < N; ++d) to[d * p.d_out] += acc[d][k - at];
  }
}

// du, d_weight and d_prior from the states of all iterations. Each task has its own lower capsules: nothing is
// added up between threads.
template <class T>
bool final_pass(const Problem<T>& p, const Gradients<T>& out, Buffer<T>& u, Upper<T>& totals, Upper<T>& ds) {
  constexpr int L = kLanes<T>;
  const int64_t all = p.all(), padded = (all + L - 1) / L * L, blocks = p.blocks();
  const int64_t first = out.full ? 0 : p.n_iters - 1, n = p.n_iters - first;
  const int n_products = static_cast<int>(2 * n), n_x = n_products;
  const int64_t groups = (p.I + kGradGroup - 1) / kGradGroup, tasks = std::min<int64_t>(groups, 4 * kParts);
  return parallel(tasks, p.threads, [&](int64_t task) {
    const int64_t from = task * groups / tasks * kGradGroup;
    const int64_t to = std::min((task + 1) * groups / tasks * kGradGroup, p.I);
    std::fill(out.d_weight + from * p.d_in * all, out.d_weight + to * p.d_in * all, T(0));
    if (out.d_prior) std::fill(out.d_prior + from * p.J, out.d_prior + to * p.J, T(0));
    Buffer<T> products(kGradGroup * n_products * p.J), d_coupling(kGradGroup * p.J), du(kGradGroup * p.d_in);
    Buffer<T> dvotes(kGradGroup * padded), rows(kGradGroup * kBlocksTogether * padded), d_prior(kGradGroup * p.J);
    std::fill(dvotes.get(), dvotes + kGradGroup * padded, splat<T>(0));
    std::vector<const Vec<T>*> x(n_x);
    for (int64_t b0 = 0; b0 < blocks; b0 += kBlocksTogether) {
      const int64_t b1 = std::min(b0 + kBlocksTogether, blocks);
      for (int64_t i = from; i < to; i += kGradGroup) {
        const int64_t group = std::min<int64_t>(kGradGroup, to - i);
        for (int64_t block = b0; block < b1; ++block) {
          const Vec<T>* ub = u + (block * p.I + i) * p.d_in;
          const int images = p.images(block);
          // Products with V give the logits, those with ds the couplings' gradient ...
          for (int64_t t = 0; t < n; ++t) {
            x[2 * t] = totals.at(block, first + t);
            x[2 * t + 1] = ds.at(block, first + t);
          }
          std::fill(products.get(), products + group * n_products * p.J, splat<T>(0));
          for (int64_t t = 0; t < n; ++t) {
            for (int64_t g = 0; p.prior && g < group; ++g) {
              for (int64_t j = 0; j < p.J; ++j) {
                products[(g * n_products + 2 * t) * p.J + j] = splat(p.prior[(i + g) * p.J + j]);
              }
            }
          }
          stretches<kTile>(p.d_out, [&](auto size, int64_t at) {
            vote<T, decltype(size)::value>(p, ub, p.matrices(i), group, at, nullptr, n_products, x.data(),
                                           products.get());
          });
          if (out.d_coupling) {
            to_lanes(out.d_coupling + (block * L * p.I + i) * p.J, p.I * p.J, images, group * p.J, d_coupling.get());
          }
          std::fill(d_prior.get(), d_prior + kGradGroup * p.J, splat<T>(0));
          // ... and with them each is weighted in turn: ds by c, V by db.
          for (int64_t g = 0; g < group; ++g) {
            for (int64_t t = 0; t < n; ++t) {
              Vec<T>* b = products + (g * n_products + 2 * t) * p.J;
              Vec<T>* db = b + p.J;
              softmax<T>(p, b);
              for (int64_t j = 0; out.d_coupling && t == n - 1 && j < p.J; ++j) db[j] += d_coupling[g * p.J + j];
              softmax_backward<T>(p, b, db);
              for (int64_t j = 0; j < p.J; ++j) d_prior[g * p.J + j] += db[j];
              if (!out.full) std::fill(db, db + p.J, splat<T>(0));
              std::swap_ranges(b, b + p.J, db);
            }
          }
          std::fill(du.get(), du + group * p.d_in, splat<T>(0));
          stretches<kTile>(p.d_out, [&](auto size, int64_t at) {
            spread<T, decltype(size)::value>(p, p.matrices(i), group, at, n_x, x.data(), products.get(), padded,
                                             dvotes.get(), du.get());
          });
          from_lanes(du.get(), out.du + (block * L * p.I + i) * p.d_in, p.I * p.d_in, images, group * p.d_in);
          for (int64_t g = 0; g < group; ++g) {
            T* to_rows = reinterpret_cast<T*>(rows + (g * kBlocksTogether + block - b0) * padded);
            from_lanes(dvotes + g * padded, to_rows, padded, L, padded);
            for (int64_t j = 0; out.d_prior && j < p.J; ++j) {
              out.d_prior[(i + g) * p.J + j] += sum_of_lanes<T>(d_prior[g * p.J + j], images);
            }
          }
        }
        for (int64_t g = 0; g < group; ++g) {
          T* d_weight = out.d_weight + (i + g) * p.d_in * all;
          stretches<kRows>(p.d_in, [&](auto size, int64_t d0) {
            constexpr int N = decltype(size)::value;
            for (int64_t at = 0; at < padded; at += L) {
              Vec<T> acc[N][1], sum[N];
              for (int d = 0; d < N; ++d) acc[d][0] = splat<T>(0);
              for (int64_t block = b0; block < b1; ++block) {
                const T* r = reinterpret_cast<const T*>(rows + (g * kBlocksTogether + block - b0) * padded) + at;
                outer<T, N, 1>(u + (block * p.I + i + g) * p.d_in + d0, r, padded, p.images(block), acc);
              }
              for (int d = 0; d < N; ++d) sum[d] = acc[d][0];
              add_rows<T, N>(p, sum, d0, at, d_weight);
            }
          });
        }
      }
    }
  });
}

template <class T>
bool backward(const Problem<T>& p, const Gradients<T>& out) {
  const int64_t all = p.all(), blocks = p.blocks(), n = p.n_iters;
  Buffer<T> u(blocks * p.I * p.d_in);
  Upper<T> s(p, n), totals(p, n), ds(p, n), dv(p);  // totals: V of every iteration
  bool good = lanes_of_u(p, u) && parallel(blocks, p.threads, [&](int64_t block) {
    const int images = p.images(block);
    Buffer<T> v(all), lengths(p.J);
    std::fill(totals.at(block), totals.at(block) + all, splat<T>(0));
    for (int64_t t = 0; t < n; ++t) {
      to_lanes(out.states + (t * p.B + block * p.L) * all, all, images, all, s.at(block, t));
      if (t == n - 1) break;
      squash<T>(p, s.at(block, t), v.get(), lengths.get());
      for (int64_t k = 0; k < all; ++k) totals.at(block, t + 1)[k] = totals.at(block, t)[k] + v[k];
    }
    to_lanes(out.d_pose + block * p.L * all, all, images, all, dv.at(block));
    to_lanes(out.d_activation + block * p.L * p.J, p.J, images, p.J, lengths.get());
    squash_backward<T>(p, s.at(block, n - 1), dv.at(block), lengths.get(), ds.at(block, n - 1));
    std::fill(dv.at(block), dv.at(block) + all, splat<T>(0));  // from here on that of the iterations before
  });
  for (int64_t t = n - 1; good && out.full && t > 0; --t) {
    const auto pass = [&](int64_t block, int64_t i0, int64_t i1, Vec<T>* sum) {
      const Vec<T>* x[] = {totals.at(block, t), ds.at(block, t)};
      Buffer<T> d_coupling(p.J);
      const auto weigh = [&](int64_t i, Vec<T>* b) {
        Vec<T>* db = b + p.J;
        softmax<T>(p, b);
        if (out.d_coupling && t == n - 1) {
          to_lanes(out.d_coupling + (block * p.L * p.I + i) * p.J, p.I * p.J, p.images(block), p.J, d_coupling.get());
          for (int64_t j = 0; j < p.J; ++j) db[j] += d_coupling[j];
        }
        softmax_backward<T>(p, b, db);
        return db;
      };
      weighted_pass(p, u + block * p.I * p.d_in, i0, i1, 2, x, weigh, sum);
    };
    good = over_lower(p, pass, [&](int64_t block, Vec<T>* d_total) {
      for (int64_t k = 0; k < all; ++k) dv.at(block)[k] += d_total[k];
      squash_backward<T>(p, s.at(block, t - 1), dv.at(block), nullptr, ds.at(block, t - 1));
    });
  }
  if (!good) return false;
  for (int64_t k = 0; out.d_bias && k < all; ++k) {
    double sum = 0;
    for (int64_t t = out.full ? 0 : n - 1; t < n; ++t) {
      for (int64_t block = 0; block < blocks; ++block) {
        for (int l = 0; l < p.images(block); ++l) sum += static_cast<double>(ds.at(block, t)[k][l]);
      }
    }
    out.d_bias[k] = static_cast<T>(sum);
  }
  return final_pass(p, out, u, totals, ds);
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
#define TORCHCAPS_EXPORT extern "C" __attribute__((visibility("default")))
#define TORCHCAPS_ROUTING(T, suffix)                                                                              \
  TORCHCAPS_EXPORT int32_t forward_##suffix(TORCHCAPS_SIZES, const T* u, const T* weight, const T* bias,          \
                                            const T* prior, T* states, T* pose, T* activation, T* coupling) {     \
    return torchcaps::forward_or_fail<T>({{B, I, J, d_in, d_out, n_iters, leaky != 0, threads}, u, weight, bias,  \
                                          prior}, states, pose, activation, coupling);                            \
  }                                                                                                               \
  TORCHCAPS_EXPORT int32_t backward_##suffix(                                                                     \
      TORCHCAPS_SIZES, const T* u, const T* weight, const T* prior, const T* states, const T* d_pose,             \
      const T* d_activation, const T* d_coupling, int32_t full, T* du, T* d_weight, T* d_bias, T* d_prior) {      \
    return torchcaps::backward_or_fail<T>(                                                                        \
        {{B, I, J, d_in, d_out, n_iters, leaky != 0, threads}, u, weight, nullptr, prior},                        \
        {states, d_pose, d_activation, d_coupling, full != 0, du, d_weight, d_bias, d_prior});                    \
  }
TORCHCAPS_ROUTING(float, f32)
TORCHCAPS_ROUTING(double, f64)
