// EM routing backward, through every E-step and M-step: what ops/em/operator.py says in formulas.
#pragma once

#include "em_slopes.h"
#include "em_votes.h"
#include "parallel.h"
#include "subnormal.h"

namespace torchcaps {
namespace {

template <class T, class Pose>
struct Backward : Slopes<T, Pose> {
  typedef Vec<T> V;
  using Base = Slopes<T, Pose>;
  using Base::L;
  const T *grad_pose, *grad_act, *d_coupling;
  T *d_pose, *d_act;

  using Base::Base;

  // Children in the first M-step: R is a constant.
  template <bool kOffset>
  void first(int64_t b, Slope<V>* slopes, V* d_weight) const {
    const auto& walk = this->walk;
    Buffer<T> scratch(walk.n_children() * (D + 4));
    V *dm = scratch.get(), *dr_all = dm + walk.n_children() * D;
    std::vector<T> r_all(walk.n_children());
    walk(0, this->C, [&](const Block& block, int64_t type) {
      const int64_t row0 = type * this->K, base = b * this->n_lower() + type * this->H * this->W;
      std::fill(dm, dm + block.n() * D, V{});
      std::fill(dr_all, dr_all + block.n() * 4, V{});
      for (int64_t i = 0; i < block.n(); ++i)
        r_all[i] = this->start(block.children[i].n_seen) * this->act[base + block.children[i].child];
      for (const auto& run : block.runs)
        for (int64_t jv = 0; jv < this->JV; ++jv)
          for (const Visit& visit : run) {
            const Slope<V>& slope = slopes[place_of<Pose>(run, visit) * this->JV + jv];
            const T* m = this->pose + (base + visit.child) * D;
            const T ra = r_all[visit.i];
            const V* weight = this->weights(row0 + visit.row, jv);
            V *dr = dr_all + visit.i * 4, dv[D];
            dr[0] += slope.k;
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
              V v[4];
              quarter<T, Pose, kOffset>(m, weight, slope.mu, this->offset + (row0 + visit.row) * D, k, v);
#pragma GCC unroll 4
              for (int q = 0; q < 4; ++q) {
                const int h = 4 * q + k;
                const V u = slope.g1[h] + slope.g2[h] * v[q];
                dr[q] += u * v[q];
                dv[h] = ra * (slope.g1[h] + slope.twice[h] * v[q]);
              }
            }
            Pose::template backward<T>(m, weight, dv, dm + visit.i * D, d_weight + this->at(row0 + visit.row, jv));
          }
      for (int64_t i = 0; i < block.n(); ++i) {
        const Block::Child& child = block.children[i];
        const V* dr = dr_all + i * 4;
        add_lane_sums<T>(dm + i * D, d_pose + (base + child.child) * D);
        d_act[base + child.child] +=
            this->start(child.n_seen) * sum_lanes<T>((dr[0] + dr[1]) + (dr[2] + dr[3]))[0];
      }
    });
  }

  // Children in a later M-step and, unless the gradient stops there, in the E-step before it.
  template <bool kStop, bool kOffset>
  void later(int64_t b, int64_t t, Slope<V>* slopes, V* d_weight) const {
    const auto& walk = this->walk;
    const int64_t JV = this->JV, n_votes = walk.n_slots() * JV;
    Buffer<T> scratch(n_votes * (D + 2) + walk.n_children() * (D + 2 * this->groups()));
    V *e = scratch.get(), *r = e + n_votes * D, *dr = r + n_votes, *dm = dr + n_votes,
      *unused = dm + walk.n_children() * D;
    walk(0, this->C, [&](const Block& block, int64_t type) {
      const int64_t row0 = type * this->K, base = b * this->n_lower() + type * this->H * this->W;
      for (const auto& run : block.runs)
        for (int64_t jv = 0; jv < JV; ++jv)
          for (const Visit& visit : run) {
            const Slope<V>& slope = slopes[place_of<Pose>(run, visit) * JV + jv];
            const int64_t at = visit.slot * JV + jv;
            V q[4] = {}, a[4] = {};
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
              V v[4];
              quarter<T, Pose, kOffset>(this->pose + (base + visit.child) * D, this->weights(row0 + visit.row, jv),
                                        slope.mu, this->offset + (row0 + visit.row) * D, k, v);
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
      softmax<T>(r, block, JV, this->positions, unused, unused + walk.n_children() * this->groups());
      through_act(base, block, r, dr);
      if (!kStop && d_coupling && t == this->n_iters - 1) add_coupling(b, block, row0, dr);
      if (!kStop) through_softmax(block, r, dr);
      for (const Block::Child& child : block.children)  // from R to r
        for (int64_t k = 0; k < child.n_seen * JV; ++k) r[child.slot * JV + k] *= this->act[base + child.child];
      std::fill(dm, dm + block.n() * D, V{});
      for (const auto& run : block.runs)
        for (int64_t jv = 0; jv < JV; ++jv)
          for (const Visit& visit : run) {
            const Slope<V>& slope = slopes[place_of<Pose>(run, visit) * JV + jv];
            const int64_t at = visit.slot * JV + jv;
            const V *d = e + at * D, ra = r[at], xa = dr[at];
            V dv[D];
#pragma GCC unroll 16
            for (int h = 0; h < D; ++h) {
              dv[h] = ra * (slope.g1[h] + slope.twice[h] * (d[h] - slope.moved[h]));
              if (!kStop) dv[h] -= xa * d[h] * slope.w[h];
            }
            Pose::template backward<T>(this->pose + (base + visit.child) * D, this->weights(row0 + visit.row, jv), dv,
                                       dm + visit.i * D, d_weight + this->at(row0 + visit.row, jv));
          }
      for (int64_t i = 0; i < block.n(); ++i)
        add_lane_sums<T>(dm + i * D, d_pose + (base + block.children[i].child) * D);
      if (!kStop) add_moments<Pose>(block, JV, e, dr, slopes);
    });
  }

  // From dr, the gradient of r = R a, to those of a and of R, in place.
  void through_act(int64_t base, const Block& block, const V* share, V* dr) const {
    for (const Block::Child& child : block.children) {
      const T a = this->act[base + child.child];
      V all = {};
      for (int64_t k = child.slot * this->JV; k < (child.slot + child.n_seen) * this->JV; ++k) {
        all += share[k] * dr[k];
        dr[k] *= a;
      }
      d_act[base + child.child] += sum_lanes<T>(all)[0];
    }
  }

  void add_coupling(int64_t b, const Block& block, int64_t row0, V* dr) const {
    for (const auto& run : block.runs)
      for (const Visit& visit : run)
        for (int64_t jv = 0; jv < this->JV; ++jv)
          dr[visit.slot * this->JV + jv] += load_lanes<T>(
              this->of_coupling(d_coupling, b, visit.place, row0 + visit.row) + jv * L, this->width(jv));
  }

  // From the gradient of R to that of its logits, in place.
  void through_softmax(const Block& block, const V* share, V* dr) const {
    const int64_t groups = this->groups();
    for (const Block::Child& child : block.children)
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t from = child.slot * this->JV + g, to = (child.slot + child.n_seen) * this->JV;
        V mean = {};
        for (int64_t k = from; k < to; k += groups) mean += share[k] * dr[k];
        if (!this->positions) mean = sum_lanes<T>(mean);
        for (int64_t k = from; k < to; k += groups) dr[k] = share[k] * (dr[k] - mean);
      }
  }

  template <bool kOffset>
  void image(int64_t b, Slope<V>* slopes, V* d_weight, double* d_beta) const {
    const int64_t children = this->n_lower(), final = this->n_iters - 1;
    std::fill(d_pose + b * children * D, d_pose + (b + 1) * children * D, T(0));
    std::fill(d_act + b * children, d_act + (b + 1) * children, T(0));
    for (int64_t p = 0; p < this->P; ++p)
      for (int64_t jv = 0; jv < this->JV; ++jv) {
        Slope<V>& s = slopes[p * this->JV + jv];
        std::memset(static_cast<void*>(&s), 0, sizeof s);
        const V logit = load_lanes<T>(this->state(b, final, p, jv) + kLogit * this->J, this->width(jv));
        const int64_t at = (b * this->J + jv * L) * this->P + p;  // of the first type, others' are P further on
        to_lanes<T>(grad_pose + at * D, this->P * D, this->width(jv), D, s.dmu);
        for (int l = 0; l < this->width(jv); ++l)
          s.dlogit[l] = T(grad_act[at + l * this->P] * sigmoid(logit[l]) * sigmoid(-logit[l]));
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
    const WithoutSubnormals here;
    // The gradient of the weights is summed within groups of images, whose number does not depend on the threads,
    // and over the groups in their order.
    const int64_t size = this->n_weights(), groups = std::min<int64_t>(this->B, 16);
    const int64_t at_once = std::max<int64_t>(1, std::min(this->n_threads, groups)), records = this->P * this->JV;
    Records<V> total(size);
    Buffer<T> part(size * at_once);
    Records<Slope<V>> slopes(records * at_once);
    std::vector<double> d_beta(std::max<int64_t>(groups, 1) * 2 * this->J, 0.0);
    for (int64_t from = 0; from < groups; from += at_once) {
      const int64_t n = std::min(at_once, groups - from);
      const bool good = parallel(n, this->n_threads, [&](int64_t i) {
        const WithoutSubnormals there;
        const int64_t g = from + i;
        V* sum = part + i * size;
        std::fill(sum, sum + size, V{});
        for (int64_t b = g * this->B / groups; b < (g + 1) * this->B / groups; ++b)
          (this->*(this->offset ? &Backward::image<true> : &Backward::image<false>))(
              b, slopes.get() + i * records, sum, d_beta.data() + g * 2 * this->J);
      });
      if (!good) return false;
      for (int64_t i = 0; i < n; ++i)
        for (int64_t k = 0; k < size; ++k) total.get()[k] += part[i * size + k];
    }
    for (int64_t i = 0; i < this->C * this->K; ++i)
      for (int64_t jv = 0; jv < this->JV; ++jv)
        from_lanes<T>(total.get() + this->at(i, jv), d_weight + (i * this->J + jv * L) * Pose::kNumbers, Pose::kNumbers,
                      this->width(jv), Pose::kNumbers);
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
