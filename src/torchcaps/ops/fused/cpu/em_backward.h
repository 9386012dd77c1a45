// EM routing backward, through every E-step and M-step: what ops/fused/em.py says in formulas.
#pragma once

#include "em_slopes.h"
#include "em_votes.h"
#include "parallel.h"

namespace torchcaps {
namespace {

// From the gradient of a vote, column by column, to those of the pose and of the weights.
template <class T>
struct Gradients {
  typedef Vec<T> V;
  const T* m;
  const V* weight;
  V *dm, *dw, sum[D];

  Gradients(const T* m, const V* weight, V* dm, V* dw) : m(m), weight(weight), dm(dm), dw(dw) {
#pragma GCC unroll 16
    for (int h = 0; h < D; ++h) sum[h] = dm[h];
  }

  void column(int c, const V* dv) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const V w = weight[4 * k + c];
      V d = dw[4 * k + c];
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        sum[4 * q + k] += dv[q] * w;
        d += m[4 * q + k] * dv[q];
      }
      dw[4 * k + c] = d;
    }
  }

  void finish() {
#pragma GCC unroll 16
    for (int h = 0; h < D; ++h) dm[h] = sum[h];
  }
};

template <class T>
struct Backward : Slopes<T> {
  typedef Vec<T> V;
  using Base = Slopes<T>;
  using Base::L;
  const T *grad_pose, *grad_act, *d_coupling;
  T *d_pose, *d_act;

  using Base::Base;

  // Children in the first M-step: R is a constant.
  template <bool kOffset>
  void first(int64_t b, Slope<V>* slopes, V* d_weight) const {
    const int64_t JV = this->JV, block = this->block();
    Buffer<T> scratch(block * (D + 4));
    V *dm = scratch.get(), *dr_all = dm + block * D;
    std::vector<Seen> seen(this->most_seen);
    for (int64_t y = 0; y < this->H; ++y)
      for (int64_t x = 0; x < this->W; ++x) {
        const int n_seen = this->seen_by(y, x, seen.data());
        if (!n_seen) continue;
        const T start = this->start(n_seen);
        for (int64_t c = 0; c < this->C; c += block) {
          const int n = int(std::min<int64_t>(block, this->C - c));
          std::fill(dm, dm + block * (D + 4), V{});
          for (int s = 0; s < n_seen; ++s)
            for (int64_t jv = 0; jv < JV; ++jv) {
              const Slope<V>& slope = slopes[seen[s].place * JV + jv];
              for (int i = 0; i < n; ++i) {
                const int64_t child = this->child(b, c + i, y, x), row = (c + i) * this->K + seen[s].kernel;
                const T* m = this->pose + child * D;
                const T ra = start * this->act[child];
                const V* weight = this->weights() + (row * JV + jv) * D;
                V *dw = d_weight + (row * JV + jv) * D, *dr = dr_all + i * 4, q4[4];
                dr[0] += slope.k;
                Gradients<T> grads(m, weight, dm + i * D, dw);
#pragma GCC unroll 4
                for (int k = 0; k < 4; ++k) {
                  V v[4];
                  column<T, kOffset>(m, weight, slope.mu, this->offset + row * D, k, v);
#pragma GCC unroll 4
                  for (int q = 0; q < 4; ++q) {
                    const int h = 4 * q + k;
                    const V u = slope.g1[h] + slope.g2[h] * v[q];
                    dr[q] += u * v[q];
                    q4[q] = ra * (slope.g1[h] + slope.twice[h] * v[q]);
                  }
                  grads.column(k, q4);
                }
                grads.finish();
              }
            }
          for (int i = 0; i < n; ++i) {
            const int64_t child = this->child(b, c + i, y, x);
            const V* dr = dr_all + i * 4;
            add_lane_sums<T>(dm + i * D, d_pose + child * D);
            d_act[child] += start * sum_lanes<T>((dr[0] + dr[1]) + (dr[2] + dr[3]))[0];
          }
        }
      }
  }

  // Children in a later M-step and, unless the gradient stops there, in the E-step before it.
  template <bool kStop, bool kOffset>
  void later(int64_t b, int64_t t, Slope<V>* slopes, V* d_weight) const {
    const int64_t JV = this->JV, most = this->most_seen * JV;
    const int block = int(this->block());
    Buffer<T> scratch(block * most * (D + 2) + block * (D + 2 * JV));
    V *e = scratch.get(), *r = e + block * most * D, *dr = r + block * most, *dm = dr + block * most, *unused = dm + block * D;
    std::vector<Seen> seen(this->most_seen);
    for (int64_t y = 0; y < this->H; ++y)
      for (int64_t col = 0; col < this->W; ++col) {
        const int n_seen = this->seen_by(y, col, seen.data());
        if (!n_seen) continue;
        for (int64_t c = 0; c < this->C; c += block) {
          const int n = int(std::min<int64_t>(block, this->C - c));
          for (int s = 0; s < n_seen; ++s)
            for (int64_t jv = 0; jv < JV; ++jv) {
              const Slope<V>& slope = slopes[seen[s].place * JV + jv];
              for (int i = 0; i < n; ++i) {
                const int64_t row = (c + i) * this->K + seen[s].kernel, at = i * most + s * JV + jv;
                const T* m = this->pose + this->child(b, c + i, y, col) * D;
                V q[4] = {}, a[4] = {};
#pragma GCC unroll 4
                for (int k = 0; k < 4; ++k) {
                  V v[4];
                  column<T, kOffset>(m, this->weights() + (row * JV + jv) * D, slope.mu, this->offset + row * D, k, v);
#pragma GCC unroll 4
                  for (int l = 0; l < 4; ++l) {
                    const int h = 4 * l + k;
                    const V d = v[l] - slope.moved[h];
                    e[at * D + h] = v[l];
                    q[l] += v[l] * v[l] * slope.w[h];
                    a[l] += d * (slope.g1[h] + slope.g2[h] * d);
                  }
                }
                r[at] = slope.c - T(0.5) * ((q[0] + q[1]) + (q[2] + q[3]));
                dr[at] = slope.k + ((a[0] + a[1]) + (a[2] + a[3]));
              }
            }
          softmax<T>(r, n, most, n_seen, JV, this->positions, unused, unused + block * JV);
          for (int i = 0; i < n; ++i) {  // from dr to x, the gradient of the logits; from R to r
            const int64_t child = this->child(b, c + i, y, col);
            const T a = this->act[child];
            V *share = r + i * most, *slope = dr + i * most, all = {};
            for (int64_t k = 0; k < n_seen * JV; ++k) {
              all += share[k] * slope[k];
              slope[k] *= a;
            }
            d_act[child] += sum_lanes<T>(all)[0];
            if (kStop) {
              for (int64_t k = 0; k < n_seen * JV; ++k) share[k] *= a;
              continue;
            }
            if (d_coupling && t == this->n_iters - 1)
              for (int s = 0; s < n_seen; ++s)
                for (int64_t jv = 0; jv < JV; ++jv)
                  slope[s * JV + jv] += load_lanes<T>(
                      this->of_coupling(d_coupling, b, seen[s].place, (c + i) * this->K + seen[s].kernel) + jv * L,
                      this->width(jv));
            const int64_t step = this->groups(), terms = this->positions ? n_seen : n_seen * JV;
            for (int64_t g = 0; g < step; ++g) {
              V mean = {};
              for (int64_t k = g; k < terms * step; k += step) mean += share[k] * slope[k];
              if (!this->positions) mean = sum_lanes<T>(mean);
              for (int64_t k = g; k < terms * step; k += step) {
                slope[k] = share[k] * (slope[k] - mean);
                share[k] *= a;
              }
            }
          }
          std::fill(dm, dm + n * D, V{});
          for (int s = 0; s < n_seen; ++s)
            for (int64_t jv = 0; jv < JV; ++jv) {
              const Slope<V>& slope = slopes[seen[s].place * JV + jv];
              for (int i = 0; i < n; ++i) {
                const int64_t row = (c + i) * this->K + seen[s].kernel, at = i * most + s * JV + jv;
                const V *d = e + at * D, ra = r[at], xa = dr[at];
                Gradients<T> grads(this->pose + this->child(b, c + i, y, col) * D, this->weights() + (row * JV + jv) * D,
                                   dm + i * D, d_weight + (row * JV + jv) * D);
#pragma GCC unroll 4
                for (int k = 0; k < 4; ++k) {
                  V dv[4];
#pragma GCC unroll 4
                  for (int q = 0; q < 4; ++q) {
                    const int h = 4 * q + k;
                    dv[q] = ra * (slope.g1[h] + slope.twice[h] * (d[h] - slope.moved[h]));
                    if (!kStop) dv[q] -= xa * d[h] * slope.w[h];
                  }
                  grads.column(k, dv);
                }
                grads.finish();
              }
            }
          for (int i = 0; i < n; ++i) add_lane_sums<T>(dm + i * D, d_pose + this->child(b, c + i, y, col) * D);
          if (!kStop)
            for (int s = 0; s < n_seen; ++s)
              for (int64_t jv = 0; jv < JV; ++jv) {
                Slope<V>& slope = slopes[seen[s].place * JV + jv];
                const int64_t at = s * JV + jv;
                add_moments(e + at * D, dr + at, n, most, &slope.s0, slope.s1, slope.s2);
              }
        }
      }
  }

  template <bool kOffset>
  void image(int64_t b, Slope<V>* slopes, V* d_weight, double* d_beta) const {
    const int64_t children = this->C * this->H * this->W, final = this->n_iters - 1;
    std::fill(d_pose + b * children * D, d_pose + (b + 1) * children * D, T(0));
    std::fill(d_act + b * children, d_act + (b + 1) * children, T(0));
    for (int64_t p = 0; p < this->P; ++p)
      for (int64_t jv = 0; jv < this->JV; ++jv) {
        Slope<V>& s = slopes[p * this->JV + jv];
        std::memset(static_cast<void*>(&s), 0, sizeof s);
        const V logit = load_lanes<T>(this->state(b, final, p, jv) + kLogit * this->J, this->width(jv));
        for (int l = 0; l < this->width(jv); ++l) {
          const int64_t at = (b * this->J + jv * L + l) * this->P + p;
          for (int h = 0; h < D; ++h) s.dmu[h][l] = grad_pose[at * D + h];
          s.dlogit[l] = T(grad_act[at] * sigmoid(logit[l]) * sigmoid(-logit[l]));
        }
      }
    for (int64_t t = final; t >= 0; --t) {
      this->prepare(b, t, slopes, d_beta);
      if (t == 0) {
        first<kOffset>(b, slopes, d_weight);
      } else if (this->last) {
        later<true, kOffset>(b, t, slopes, d_weight);
        return;
      } else {
        later<false, kOffset>(b, t, slopes, d_weight);
        this->through(b, t, slopes);
      }
    }
  }

  bool run(T* d_weight, T* d_beta_u, T* d_beta_a) const {
    // The gradient of the weights is summed within groups of images, whose number does not depend on the threads,
    // and over the groups in their order.
    const int64_t size = this->C * this->K * this->JV * D, groups = std::min<int64_t>(this->B, 16);
    const int64_t at_once = std::max<int64_t>(1, std::min(this->n_threads, groups)), records = this->P * this->JV;
    Records<V> total(size);
    Buffer<T> part(size * at_once);
    Records<Slope<V>> slopes(records * at_once);
    std::vector<double> d_beta(std::max<int64_t>(groups, 1) * 2 * this->J, 0.0);
    for (int64_t from = 0; from < groups; from += at_once) {
      const int64_t n = std::min(at_once, groups - from);
      const bool good = parallel(n, this->n_threads, [&](int64_t i) {
        const int64_t g = from + i;
        V* sum = part + i * size;
        std::fill(sum, sum + size, V{});
        for (int64_t b = g * this->B / groups; b < (g + 1) * this->B / groups; ++b)
          (this->*(this->offset ? &Backward::image<true> : &Backward::image<false>))(
              b, slopes.get() + i * records, sum, d_beta.data() + g * 2 * this->J);
      });
      if (!good) return false;
      for (int64_t i = 0; i < n * size; ++i) total.get()[i % size] += part[i];
    }
    for (int64_t i = 0; i < this->C * this->K; ++i)
      for (int64_t j = 0; j < this->J; ++j)
        for (int h = 0; h < D; ++h)
          d_weight[(i * this->J + j) * D + h] = total.get()[(i * this->JV + j / L) * D + h][j % L];
    for (int64_t j = 0; j < this->J; ++j) {
      double u = 0, a = 0;
      for (int64_t g = 0; g < groups; ++g) u += d_beta[g * 2 * this->J + j], a += d_beta[(g * 2 + 1) * this->J + j];
      d_beta_u[j] = T(u), d_beta_a[j] = T(a);
    }
    return true;
  }
};

}  // namespace
}  // namespace torchcaps
