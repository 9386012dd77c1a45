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
constexpr int kGroup = 4;                  // lower capsules that share the states of a block while these are in L1
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
  explicit Upper(const Problem<T>& p, int64_t copies = 1) : all(p.all()), blocks(p.blocks()), data(copies * blocks * all) {}
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
        __builtin_prefetch(row + p.d_in * p.d_out);
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

// Logits start from the prior ones, and from 0 where there are none.
template <class T>
void start(const Problem<T>& p, int64_t i, Vec<T>* b) {
  for (int64_t j = 0; j < p.J; ++j) b[j] = splat(p.prior ? p.prior[i * p.J + j] : T(0));
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
          __builtin_prefetch(row + 4 * p.d_in * p.all());
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
        const Vec<T>* xk = opaque(x[k] + j * p.d_out + at);
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

// Of N rows of one capsule's matrices: acc[d] += Σ over images of u_d dvotes, C vectors of the latter.
template <class T, int N, int C>
void outer(const Vec<T>* u, const Vec<T>* rows, int64_t stride, int images, Vec<T> (&acc)[C][N]) {
  const T* scalars = reinterpret_cast<const T*>(u);
  for (int l = 0; l < images; ++l) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
      const Vec<T> x = rows[c * stride + l];
#pragma GCC unroll 8
      for (int d = 0; d < N; ++d) acc[c][d] += x * scalars[d * kLanes<T> + l];
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

// One iteration's part of dvotes: c ds, and db V. The numbers say which product or coefficient is its own; −1 is none.
struct Term {
  int64_t t;
  int logit = -1, gradient = -1;  // products û·V and û·ds
  int c = -1, db = -1;            // coefficients of ds and V
};

// du, d_weight and d_prior, once the states of all iterations and their gradients are known. Each task has lower
// capsules of its own: nothing is added up between threads.
template <class T>
class FinalPass {
 public:
  FinalPass(const Problem<T>& p, const Gradients<T>& out, Buffer<T>& u, Upper<T>& totals, Upper<T>& ds)
      : p(p), out(out), u(u), totals(totals), ds(ds), vectors((p.all() + L - 1) / L) {
    for (int64_t t = out.full ? 0 : p.n_iters - 1; t < p.n_iters; ++t) {
      Term term{t};
      const bool through_logits = out.full && t > 0;  // V = 0 at first, and a constant where the gradient stops
      if (t > 0) term.logit = n_products++;
      if (through_logits || out.d_prior) term.gradient = n_products++;
      term.c = n_coefficients++;
      if (through_logits) term.db = n_coefficients++;
      terms.push_back(term);
    }
  }

  bool run() {
    const int64_t groups = (p.I + kGroup - 1) / kGroup, tasks = std::min<int64_t>(groups, 4 * kParts);
    return parallel(tasks, p.threads, [&](int64_t task) {
      const int64_t from = task * groups / tasks * kGroup, to = std::min((task + 1) * groups / tasks * kGroup, p.I);
      std::fill(out.d_weight + from * p.d_in * p.all(), out.d_weight + to * p.d_in * p.all(), T(0));
      if (out.d_prior) std::fill(out.d_prior + from * p.J, out.d_prior + to * p.J, T(0));
      Scratch s(*this);
      for (int64_t b0 = 0; b0 < p.blocks(); b0 += kBlocksTogether) {
        const int64_t b1 = std::min(b0 + kBlocksTogether, p.blocks());
        for (int64_t i = from; i < to; i += kGroup) {
          const int64_t n = std::min<int64_t>(kGroup, to - i);
          for (int64_t block = b0; block < b1; ++block) {
            find_coefficients(s, block, i, n);
            find_dvotes(s, block, i, n, block - b0);
          }
          for (int64_t g = 0; g < n; ++g) find_d_weight(b0, b1, i + g, s.rows + g * s.row_stride);
        }
      }
    });
  }

 private:
  static constexpr int L = kLanes<T>;
  static constexpr int64_t kImages = kBlocksTogether * L;

  struct Scratch {
    explicit Scratch(const FinalPass& f)
        : row_stride(f.vectors * kImages), products(kGroup * f.n_products * f.p.J),
          coefficients(kGroup * f.n_coefficients * f.p.J), d_coupling(kGroup * f.p.J), db(f.p.J),
          du(kGroup * f.p.d_in), dvotes(kGroup * f.vectors * L), rows(kGroup * row_stride), x(f.n_products),
          y(f.n_coefficients) {
      std::fill(dvotes.get(), dvotes + kGroup * f.vectors * L, splat<T>(0));
    }
    int64_t row_stride;
    Buffer<T> products, coefficients, d_coupling, db, du, dvotes;
    Buffer<T> rows;  // dvotes with images as rows: [capsule of the group][L numbers][image], vectors of L numbers
    std::vector<const Vec<T>*> x, y;
  };

  // c and db of every iteration, for n lower capsules of a block.
  void find_coefficients(Scratch& s, int64_t block, int64_t i, int64_t n) {
    for (const Term& term : terms) {
      if (term.logit >= 0) s.x[term.logit] = totals.at(block, term.t);
      if (term.gradient >= 0) s.x[term.gradient] = ds.at(block, term.t);
    }
    std::fill(s.products.get(), s.products + n * n_products * p.J, splat<T>(0));
    if (n_products) {
      stretches<kTile>(p.d_out, [&](auto size, int64_t at) {
        vote<T, decltype(size)::value>(p, u + (block * p.I + i) * p.d_in, p.matrices(i), n, at, nullptr, n_products,
                                       s.x.data(), s.products.get());
      });
    }
    if (out.d_coupling) {
      to_lanes(out.d_coupling + (block * L * p.I + i) * p.J, p.I * p.J, p.images(block), n * p.J, s.d_coupling.get());
    }
    for (int64_t g = 0; g < n; ++g) {
      for (const Term& term : terms) {
        Vec<T>* c = s.coefficients + (g * n_coefficients + term.c) * p.J;
        start(p, i + g, c);
        if (term.logit >= 0) {
          const Vec<T>* logit = s.products + (g * n_products + term.logit) * p.J;
          for (int64_t j = 0; j < p.J; ++j) c[j] += logit[j];
        }
        softmax<T>(p, c);
        if (term.gradient < 0) continue;
        Vec<T>* dc = s.products + (g * n_products + term.gradient) * p.J;
        for (int64_t j = 0; out.d_coupling && term.t == p.n_iters - 1 && j < p.J; ++j) dc[j] += s.d_coupling[g * p.J + j];
        softmax_backward<T>(p, c, dc);
        if (term.db >= 0) std::copy(dc, dc + p.J, s.coefficients + (g * n_coefficients + term.db) * p.J);
        for (int64_t j = 0; out.d_prior && j < p.J; ++j) {
          out.d_prior[(i + g) * p.J + j] += sum_of_lanes<T>(dc[j], p.images(block));
        }
      }
    }
  }

  void find_dvotes(Scratch& s, int64_t block, int64_t i, int64_t n, int64_t nth) {
    for (const Term& term : terms) {
      s.y[term.c] = ds.at(block, term.t);
      if (term.db >= 0) s.y[term.db] = totals.at(block, term.t);
    }
    std::fill(s.du.get(), s.du + n * p.d_in, splat<T>(0));
    stretches<kTile>(p.d_out, [&](auto size, int64_t at) {
      spread<T, decltype(size)::value>(p, p.matrices(i), n, at, n_coefficients, s.y.data(), s.coefficients.get(),
                                       vectors * L, s.dvotes.get(), s.du.get());
    });
    from_lanes(s.du.get(), out.du + (block * L * p.I + i) * p.d_in, p.I * p.d_in, p.images(block), n * p.d_in);
    for (int64_t g = 0; g < n; ++g) {
      for (int64_t k = 0; k < vectors; ++k) {
        Vec<T> x[L];
#pragma GCC unroll 16
        for (int l = 0; l < L; ++l) x[l] = s.dvotes[(g * vectors + k) * L + l];
        transpose<T>(x);
        Vec<T>* to = s.rows + g * s.row_stride + k * kImages + nth * L;
#pragma GCC unroll 16
        for (int l = 0; l < L; ++l) to[l] = x[l];
      }
    }
  }

  void find_d_weight(int64_t b0, int64_t b1, int64_t i, const Vec<T>* rows) {
    stretches<kRows>(p.d_in, [&](auto size, int64_t d0) {
      constexpr int N = decltype(size)::value;
      int64_t k = 0;
      for (; k + 2 <= vectors; k += 2) add_columns<N, 2>(b0, b1, i, d0, k, rows + k * kImages);
      if (k < vectors) add_columns<N, 1>(b0, b1, i, d0, k, rows + k * kImages);
    });
  }

  template <int N, int C>
  void add_columns(int64_t b0, int64_t b1, int64_t i, int64_t d0, int64_t k, const Vec<T>* rows) {
    Vec<T> acc[C][N];
    for (int c = 0; c < C; ++c) {
      for (int d = 0; d < N; ++d) acc[c][d] = splat<T>(0);
    }
    for (int64_t block = b0; block < b1; ++block, rows += L) {
      outer<T, N, C>(u + (block * p.I + i) * p.d_in + d0, rows, kImages, p.images(block), acc);
    }
    for (int c = 0; c < C; ++c) add_rows<T, N>(p, acc[c], d0, (k + c) * L, out.d_weight + i * p.d_in * p.all());
  }

  const Problem<T>& p;
  const Gradients<T>& out;
  Buffer<T>& u;
  Upper<T>&totals, &ds;
  const int64_t vectors;  // of L numbers, that hold the votes of a capsule
  int n_products = 0, n_coefficients = 0;
  std::vector<Term> terms;
};

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
  return FinalPass<T>(p, out, u, totals, ds).run();
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
