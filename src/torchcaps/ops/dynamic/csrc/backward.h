// The gradient of dynamic routing through all iterations, or the last; the algebra is in ops/dynamic/operator.py.
#pragma once

#include <vector>

#include "passes.h"

namespace torchcaps {
namespace {

constexpr int kRows = kRegisters / 4;  // rows of a gradient's tile that are accumulated at once
constexpr int kGroup = 4;              // lower capsules that share the states of a block while these are in L1

// What flows back from one iteration: û_ij gets c_ij ds_j + db_ij V_j.
template <class T>
struct Gradients {
  const T *states, *d_pose, *d_activation, *d_coupling;
  bool full;
  T *du, *d_weight, *d_bias, *d_b0;
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

// du, d_weight and d_b0, once the states of all iterations and their gradients are known. Each task has lower
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
      if (through_logits || out.d_b0) term.gradient = n_products++;
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
      if (out.d_b0) std::fill(out.d_b0 + from * p.J, out.d_b0 + to * p.J, T(0));
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
        const bool coupled = out.d_coupling && term.t == p.n_iters - 1;
        for (int64_t j = 0; coupled && j < p.J; ++j) dc[j] += s.d_coupling[g * p.J + j];
        softmax_backward<T>(p, c, dc);
        if (term.db >= 0) std::copy(dc, dc + p.J, s.coefficients + (g * n_coefficients + term.db) * p.J);
        for (int64_t j = 0; out.d_b0 && j < p.J; ++j) {
          out.d_b0[(i + g) * p.J + j] += sum_of_lanes<T>(dc[j], p.images(block));
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
  large_pages(out.d_weight, p.I * p.d_in * all);
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

}  // namespace
}  // namespace torchcaps
