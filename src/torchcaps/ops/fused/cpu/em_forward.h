// EM routing forward: in one walk over the children an E-step, and the sums of the M-step after it.
//
// Sums of squares are centred on the mean of the iteration before. Where the mean moved so far that the variance
// would cancel, that parent's variance is summed again around the new mean.
#pragma once

#include "em_problem.h"
#include "parallel.h"

namespace torchcaps {
namespace {

template <class V>
struct Parent {  // L parents of one place
  V mu[D], w[D];           // the state that the E-step sees: mean, 1/σ²
  V s1[D], s2[D];          // Σ r (V − μ), Σ r (V − μ)²
  V t1[D], t2[D], t0;      // the same, of the runs put aside
  V s0, c;                 // Σ r; log a − ½ Σ log σ², but for what all have in common
};

// Column c of V − μ: components c, 4 + c, 8 + c and 12 + c.
template <class T, bool kOffset>
inline void column(const T* m, const Vec<T>* weight, const Vec<T>* mu, const T* offset, int c, Vec<T>* v) {
  const Vec<T> w0 = weight[c], w1 = weight[4 + c], w2 = weight[8 + c], w3 = weight[12 + c];
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    Vec<T> x = m[4 * q] * w0 - (kOffset ? mu[4 * q + c] - offset[4 * q + c] : mu[4 * q + c]);
    x += m[4 * q + 1] * w1;
    x += m[4 * q + 2] * w2;
    v[q] = x + m[4 * q + 3] * w3;
  }
}

// V − μ into e; returns Σ (V − μ)² w.
template <class T, bool kOffset>
inline Vec<T> differences(const T* m, const Vec<T>* weight, const Vec<T>* mu, const T* offset, const Vec<T>* w,
                          Vec<T>* e) {
  Vec<T> sum[4] = {};
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    Vec<T> v[4];
    column<T, kOffset>(m, weight, mu, offset, c, v);
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      e[4 * q + c] = v[q];
      sum[q] += v[q] * v[q] * w[4 * q + c];
    }
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// s0 += Σ r, s1 += Σ r e, s2 += Σ r e² over n children, whose e lie `apart` vectors from each other.
template <class V>
inline void add_moments(const V* e, const V* r, int n, int64_t apart, V* s0, V* s1, V* s2) {
  V total = {};
  for (int i = 0; i < n; ++i) total += r[i * apart];
  *s0 += total;
  for (int h = 0; h < D; h += 4) {
    V a[4] = {}, b[4] = {};
    for (int i = 0; i < n; ++i) {
      const V x = r[i * apart];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const V y = e[i * apart * D + h + k], xy = x * y;
        a[k] += xy;
        b[k] += xy * y;
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) s1[h + k] += a[k], s2[h + k] += b[k];
  }
}

// From logits to R, in place, for n children whose logits lie `apart` vectors from each other: over all parents of a
// child, or for each type over its places. Keeps the greatest logit and the inverse of the sum, from which one R can
// be made again. Step by step for all children, so that no step waits for the one before.
template <class T>
inline void softmax(Vec<T>* logit, int n, int64_t apart, int n_seen, int64_t JV, bool positions, Vec<T>* greatest,
                    Vec<T>* inverse) {
  typedef Vec<T> V;
  // Processors are slow with what would become of such a share: numbers below the least normal one.
  const V tiny = splat<T>(std::numeric_limits<T>::min() * T(1e8));
  const int64_t groups = positions ? JV : 1, step = positions ? JV : 1, terms = positions ? n_seen : n_seen * JV;
  for (int i = 0; i < n; ++i)
    for (int64_t g = 0; g < groups; ++g) {
      const V* x = logit + i * apart + g;
      V top = x[0];
      for (int64_t k = 1; k < terms; ++k) top = vmax(top, x[k * step]);
      greatest[i * groups + g] = positions ? top : max_lanes<T>(top);
    }
  for (int i = 0; i < n; ++i)
    for (int64_t k = 0; k < n_seen; ++k)
      for (int64_t jv = 0; jv < JV; ++jv) {
        V& x = logit[i * apart + k * JV + jv];
        x = exp_of_negative<T>(x - greatest[i * groups + (positions ? jv : 0)]);
      }
  for (int i = 0; i < n; ++i)
    for (int64_t g = 0; g < groups; ++g) {
      V* x = logit + i * apart + g;
      V sum = {};
      for (int64_t k = 0; k < terms; ++k) sum += x[k * step];
      const V inv = T(1) / (positions ? sum : sum_lanes<T>(sum));
      inverse[i * groups + g] = inv;
      for (int64_t k = 0; k < terms; ++k) {
        const V share = x[k * step] * inv;
        x[k * step] = share < tiny ? V{} : share;
      }
    }
}

template <class T>
struct Forward : Problem<T> {
  typedef Vec<T> V;
  using Base = Problem<T>;
  using Base::L;
  T *out_pose, *out_act, *saved, *coupling;

  using Base::Base;

  // The mean and the variance of every parent under the R that all start from; two passes, hence exact.
  template <bool kOffset>
  void first(int64_t b, Parent<V>* parents, T* weighted) const {
    const int64_t rows = this->C * this->K, JV = this->JV, children = this->C * this->H * this->W;
    T* r = weighted + children * D;  // r [children] and r·M [children, 16]
    std::vector<Seen> seen(this->most_seen);
    for (int64_t y = 0; y < this->H; ++y)
      for (int64_t x = 0; x < this->W; ++x) {
        const int n_seen = this->seen_by(y, x, seen.data());
        const T start = n_seen ? this->start(n_seen) : T(0);
        for (int64_t c = 0; c < this->C; ++c) {
          const int64_t child = this->child(0, c, y, x);
          const T* m = this->pose + (b * children + child) * D;
          r[child] = start * this->act[b * children + child];
          for (int h = 0; h < D; ++h) weighted[child * D + h] = r[child] * m[h];
        }
      }
    for (int64_t p = 0; p < this->P; ++p) {
      double total = 0, shift[D] = {};
      for (int64_t i = 0; i < rows; ++i) {
        const T ri = r[this->seen_child(i, p)];
        total += ri;
        if (kOffset)
          for (int h = 0; h < D; ++h) shift[h] += double(ri) * this->offset[i * D + h];
      }
      for (int64_t jv = 0; jv < JV; ++jv) {
        Parent<V>& parent = parents[p * JV + jv];
        parent.s0 = splat<T>(T(total) + this->eps);
        for (int h = 0; h < D; ++h) {
          parent.mu[h] = splat<T>(T(shift[h]));
          parent.s1[h] = parent.s2[h] = V{};
        }
      }
    }
    for (int64_t jv = 0; jv < JV; ++jv)
      for (int64_t from = 0; from < rows; from += kRows)
        for (int64_t p = 0; p < this->P; ++p) {
          V* mu = parents[p * JV + jv].mu;
          V run[D] = {};
          for (int64_t i = from; i < std::min(rows, from + kRows); ++i) {
            const V* w = this->weights() + (i * JV + jv) * D;
            const T* a = weighted + this->seen_child(i, p) * D;
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k)
#pragma GCC unroll 4
              for (int q = 0; q < 4; ++q)
#pragma GCC unroll 4
                for (int c = 0; c < 4; ++c) run[4 * q + c] += a[4 * q + k] * w[4 * k + c];
          }
#pragma GCC unroll 16
          for (int h = 0; h < D; ++h) mu[h] += run[h];
        }
    for (int64_t i = 0; i < this->P * JV; ++i)
      for (int h = 0; h < D; ++h) parents[i].mu[h] *= (1 - this->damping) / parents[i].s0;
    const T* poses = this->pose + b * children * D;
    for (int64_t jv = 0; jv < JV; ++jv)
      for (int64_t from = 0; from < rows; from += kRows)
        for (int64_t p = 0; p < this->P; ++p) {
          Parent<V>& parent = parents[p * JV + jv];
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c) {
            V run[4] = {}, rest[4] = {};
            for (int64_t i = from; i < std::min(rows, from + kRows); ++i) {
              const int64_t child = this->seen_child(i, p);
              V v[4];
              column<T, kOffset>(poses + child * D, this->weights() + (i * JV + jv) * D, parent.mu,
                                 this->offset + i * D, c, v);
#pragma GCC unroll 4
              for (int q = 0; q < 4; ++q) {
                const V rv = r[child] * v[q];
                rest[q] += rv;
                run[q] += rv * v[q];
              }
            }
#pragma GCC unroll 4
            for (int q = 0; q < 4; ++q) parent.s1[4 * q + c] += rest[q], parent.s2[4 * q + c] += run[q];
          }
        }
    for (int64_t p = 0; p < this->P; ++p)
      for (int64_t jv = 0; jv < JV; ++jv) {
        Parent<V>& parent = parents[p * JV + jv];
        const V all = parent.s0 - this->eps;  // Σ r
        for (int h = 0; h < D; ++h) {
          // The second sum says how far rounding in the first, long one left the mean amiss.
          const V s1 = parent.s1[h], mu = parent.mu[h];
          parent.mu[h] += (1 - this->damping) * (s1 - this->eps * mu) / parent.s0 - this->damping * mu;
          const V amiss = parent.mu[h] - mu;  // as rounded
          parent.t1[h] = parent.mu[h];
          parent.t2[h] = (s1 - amiss * all) / parent.s0;
          parent.s2[h] = (parent.s2[h] + amiss * (amiss * all - T(2) * s1)) / parent.s0 + this->floor;
        }
      }
  }

  // E-step with the parents' states and the M-step's sums, in one pass.
  template <bool kOffset>
  void sums(int64_t b, Parent<V>* parents, T* greatest, T* inverse, T* coupling) const {
    const int64_t JV = this->JV, most = this->most_seen * JV, groups = this->groups();
    const int64_t kept = this->positions ? JV * L : 1;
    const int block = int(this->block());
    Buffer<T> scratch(block * most * (D + 1) + 2 * block * groups);
    V *e = scratch.get(), *r = e + block * most * D, *top = r + block * most, *inv = top + block * groups;
    std::vector<Seen> seen(this->most_seen);
    for (int64_t from = 0; from < this->C; from += kRun) {
      const int64_t to = std::min(this->C, from + kRun);
      for (int64_t y = 0; y < this->H; ++y)
        for (int64_t x = 0; x < this->W; ++x) {
          const int n_seen = this->seen_by(y, x, seen.data());
          if (!n_seen) continue;
          for (int64_t c = from; c < to; c += block) {
            const int n = int(std::min<int64_t>(block, to - c));
            for (int s = 0; s < n_seen; ++s)
              for (int64_t jv = 0; jv < JV; ++jv) {
                const Parent<V>& parent = parents[seen[s].place * JV + jv];
                for (int i = 0; i < n; ++i) {
                  const int64_t row = (c + i) * this->K + seen[s].kernel, at = i * most + s * JV + jv;
                  r[at] = parent.c - T(0.5) * differences<T, kOffset>(
                                                  this->pose + this->child(b, c + i, y, x) * D,
                                                  this->weights() + (row * JV + jv) * D, parent.mu,
                                                  this->offset + row * D, parent.w, e + at * D);
                }
              }
            softmax<T>(r, n, most, n_seen, JV, this->positions, top, inv);
            for (int i = 0; i < n; ++i) {
              const int64_t at = this->child(0, c + i, y, x) * kept, size = kept * int64_t(sizeof(T));
              std::memcpy(greatest + at, top + i * groups, size);
              std::memcpy(inverse + at, inv + i * groups, size);
            }
            for (int i = 0; i < n; ++i) {
              V* share = r + i * most;
              if (coupling)
                for (int s = 0; s < n_seen; ++s)
                  for (int64_t jv = 0; jv < JV; ++jv)
                    store_lanes<T>(
                        this->of_coupling(coupling, b, seen[s].place, (c + i) * this->K + seen[s].kernel) + jv * L,
                        share[s * JV + jv], this->width(jv));
              const T a = this->act[this->child(b, c + i, y, x)];
              for (int k = 0; k < n_seen * JV; ++k) share[k] *= a;
            }
            for (int s = 0; s < n_seen; ++s)
              for (int64_t jv = 0; jv < JV; ++jv) {
                Parent<V>& parent = parents[seen[s].place * JV + jv];
                const int64_t at = s * JV + jv;
                add_moments(e + at * D, r + at, n, most, &parent.s0, parent.s1, parent.s2);
              }
          }
        }
      if (this->C <= kRun) return;
      for (int64_t i = 0; i < this->P * JV; ++i) {
        Parent<V>& parent = parents[i];
        parent.t0 += parent.s0, parent.s0 = V{};
        for (int h = 0; h < D; ++h) {
          parent.t1[h] += parent.s1[h], parent.s1[h] = V{};
          parent.t2[h] += parent.s2[h], parent.s2[h] = V{};
        }
      }
    }
  }

  // Σ r d and Σ r d² around the new mean, d = V − μ − moved, without cancelling.
  template <bool kOffset>
  void squares(int64_t b, int64_t p, int64_t jv, const Parent<V>& parent, const V* moved, const T* greatest,
               const T* inverse, V* left, V* total) const {
    const int64_t JV = this->JV;
    for (int h = 0; h < D; ++h) left[h] = total[h] = V{};
    for (int64_t row = 0; row < this->C * this->K; ++row) {
        const int64_t own = this->seen_child(row, p), child = b * this->C * this->H * this->W + own;
        const V top = this->positions ? load<T>(greatest + (own * JV + jv) * L) : splat<T>(greatest[own]);
        const V inv = this->positions ? load<T>(inverse + (own * JV + jv) * L) : splat<T>(inverse[own]);
        V e[D];
        const V q = differences<T, kOffset>(this->pose + child * D, this->weights() + (row * JV + jv) * D, parent.mu,
                                            this->offset + row * D, parent.w, e);
        const V r = this->act[child] * (exp_of_negative<T>(parent.c - T(0.5) * q - top) * inv);
        for (int h = 0; h < D; ++h) {
          const V d = e[h] - moved[h], rd = r * d;
          left[h] += rd;
          total[h] += rd * d;
        }
      }
  }

  // The new mean and variance, in mu and s2; the mass in s0; how far the mean moved and what is left in t1, t2.
  template <bool kOffset>
  void estimate(int64_t b, Parent<V>* parents, const T* greatest, const T* inverse) const {
    for (int64_t i = 0; i < this->P * this->JV; ++i) {
      Parent<V>& parent = parents[i];
      parent.s0 += parent.t0;
      const V mass = parent.s0 + this->eps, inv = T(1) / mass;
      V moved[D], left[D], squares[D];
      bool again = false;
      for (int h = 0; h < D; ++h) {
        const V s1 = parent.s1[h] + parent.t1[h], s2 = parent.s2[h] + parent.t2[h];
        moved[h] = (1 - this->damping) * ((s1 - this->eps * parent.mu[h]) * inv);
        left[h] = s1 - moved[h] * parent.s0;
        squares[h] = s2 + moved[h] * (moved[h] * parent.s0 - T(2) * s1);
        const auto lost = s2 > T(4) * (squares[h] + this->floor * mass);
        for (int l = 0; l < L; ++l) again |= lost[l] != 0;
      }
      if (again) this->template squares<kOffset>(b, i / this->JV, i % this->JV, parent, moved, greatest, inverse, left, squares);
      for (int h = 0; h < D; ++h) {
        parent.mu[h] += moved[h];
        parent.s2[h] = squares[h] * inv + this->floor;
        parent.t1[h] = moved[h], parent.t2[h] = left[h] * inv;
      }
      parent.s0 = mass;
      parent.t0 = V{};
    }
  }

  // The activations; keeps the states, and makes ready for the E-step.
  void finish(int64_t b, int64_t t, Parent<V>* parents, std::vector<double>& log_ap) const {
    const double lambda = this->lambda[t];
    const bool last = t == this->n_iters - 1;
    for (int64_t p = 0; p < this->P; ++p)
      for (int64_t jv = 0; jv < this->JV; ++jv) {
        const int64_t i = p * this->JV + jv;
        Parent<V>& parent = parents[i];
        const int n = this->width(jv);
        double logs[L];
        sum_of_logs<T>(parent.s2, logs);
        V logits = {};
        for (int l = 0; l < n; ++l) {
          const int64_t j = jv * L + l, at = (b * this->J + j) * this->P + p;
          const double logit = lambda * (this->s_a * this->beta_a[j] - parent.s0[l] * this->cost(j, logs[l]));
          logits[l] = T(logit);
          log_ap[i * L + l] = log_sigmoid(logit) - 0.5 * logs[l];
          if (!last) continue;
          out_act[at] = T(sigmoid(logit));
          for (int h = 0; h < D; ++h) out_pose[at * D + h] = parent.mu[h][l];
        }
        if (saved) {
          T* to = saved + ((b * this->P + p) * this->n_iters + t) * kState * this->J + jv * L;
          for (int h = 0; h < D; ++h) {
            store_lanes<T>(to + h * this->J, parent.t1[h], n);
            store_lanes<T>(to + (kLeft + h) * this->J, parent.t2[h], n);
            store_lanes<T>(to + (kVariance + h) * this->J, parent.s2[h], n);
          }
          store_lanes<T>(to + kLogit * this->J, logits, n);
          store_lanes<T>(to + kMass * this->J, parent.s0, n);
        }
        if (!last) ready(parent);
      }
    if (!last) this->level(log_ap, parents);
  }

  // 1/σ², from σ² in s2; sums at 0.
  static void ready(Parent<V>& parent) {
    for (int h = 0; h < D; ++h) {
      parent.w[h] = T(1) / parent.s2[h];
      parent.s1[h] = parent.s2[h] = parent.t1[h] = parent.t2[h] = V{};
    }
    parent.s0 = V{};
  }

  template <bool kOffset>
  void images(int64_t from, int64_t to) const {
    const int64_t own = this->C * this->H * this->W, first_size = own * (D + 1) / L + 1;
    const int64_t shares = this->positions ? own * this->JV : own / L + 1;
    Records<Parent<V>> records(this->P * this->JV);
    Buffer<T> numbers(first_size + 2 * shares);
    Parent<V>* parents = records.get();
    T *weighted = reinterpret_cast<T*>(numbers.get()), *greatest = weighted + first_size * L,
      *inverse = greatest + shares * L;
    std::vector<double> log_ap(this->P * this->JV * L, -std::numeric_limits<double>::infinity());
    for (int64_t b = from; b < to; ++b) {
      first<kOffset>(b, parents, weighted);
      finish(b, 0, parents, log_ap);
      for (int64_t t = 1; t < this->n_iters; ++t) {
        sums<kOffset>(b, parents, greatest, inverse, t == this->n_iters - 1 ? coupling : nullptr);
        estimate<kOffset>(b, parents, greatest, inverse);
        finish(b, t, parents, log_ap);
      }
      if (coupling && this->n_iters == 1) start_coupling(b);
    }
  }

  void start_coupling(int64_t b) const {
    std::vector<Seen> seen(this->most_seen);
    for (int64_t c = 0; c < this->C; ++c)
      for (int64_t y = 0; y < this->H; ++y)
        for (int64_t x = 0; x < this->W; ++x) {
          const int n_seen = this->seen_by(y, x, seen.data());
          for (int s = 0; s < n_seen; ++s) {
            T* to = this->of_coupling(coupling, b, seen[s].place, c * this->K + seen[s].kernel);
            std::fill(to, to + this->J, this->start(n_seen));
          }
        }
  }

  bool run() const {
    const int64_t tasks = std::min(this->B, std::max<int64_t>(1, 4 * this->n_threads));
    return parallel(tasks, this->n_threads, [&](int64_t task) {
      const int64_t from = task * this->B / tasks, to = (task + 1) * this->B / tasks;
      this->offset ? images<true>(from, to) : images<false>(from, to);
    });
  }
};

}  // namespace
}  // namespace torchcaps
