// EM routing forward: in one walk over the children an E-step, and the sums of the M-step after it.
//
// Sums of squares are centred on the mean of the iteration before. Where the mean moved so far that the variance
// would cancel, that parent's variance is summed again around the new mean.
#pragma once

#include "em_first.h"
#include "parallel.h"
#include "subnormal.h"

namespace torchcaps {
namespace {

template <class T, class Pose>
struct Forward : First<T, Pose> {
  typedef Vec<T> V;
  using Base = First<T, Pose>;
  using Base::L;
  T *out_pose, *out_act, *saved, *coupling;

  using Base::Base;

  // E-step with the parents' states and the M-step's sums, in one pass.
  template <bool kOffset>
  void sums(int64_t b, Parent<V>* parents, T* greatest, T* inverse, bool last) const {
    const auto& walk = this->walk;
    const int64_t JV = this->JV, groups = this->groups(), kept = this->positions ? JV * L : 1;
    Buffer<T> scratch(walk.n_slots() * JV * (D + 1) + 2 * walk.n_children() * groups);
    V *e = scratch.get(), *r = e + walk.n_slots() * JV * D, *top = r + walk.n_slots() * JV,
      *inv = top + walk.n_children() * groups;
    for (int64_t from = 0; from < this->C; from += kRun) {
      walk(from, std::min(this->C, from + kRun), [&](const Block& block, int64_t type) {
        const int64_t child0 = type * this->H * this->W, row0 = type * this->K;
        const T *poses = this->pose + (b * this->n_lower() + child0) * D,
                *acts = this->act + b * this->n_lower() + child0;
        for (const auto& run : block.runs)
          for (int64_t jv = 0; jv < JV; ++jv)
            for (const Visit& visit : run) {
              const Parent<V>& parent = parents[place_of<Pose>(run, visit) * JV + jv];
              const int64_t at = visit.slot * JV + jv;
              const V distance = differences<T, Pose, kOffset>(
                  poses + int64_t(visit.child) * D, this->weights(row0 + visit.row, jv), parent.mu,
                  this->offset + (row0 + visit.row) * D, parent.w, e + at * D);
              r[at] = parent.c - T(0.5) * distance;
            }
        softmax<T>(r, block, JV, this->positions, top, inv);
        if (last && coupling) store_coupling(b, block, row0, r);
        for (int64_t i = 0; i < block.n(); ++i) {
          const Block::Child& child = block.children[i];
          const int64_t at = (child0 + child.child) * kept, size = kept * int64_t(sizeof(T));
          std::memcpy(greatest + at, top + i * groups, size);
          std::memcpy(inverse + at, inv + i * groups, size);
          for (int64_t k = 0; k < child.n_seen * JV; ++k) r[child.slot * JV + k] *= acts[child.child];
        }
        add_moments<Pose>(block, JV, e, r, parents);
      });
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

  // Σ r d² around the new mean, d = V − μ − moved, without cancelling.
  template <bool kOffset>
  void squares(int64_t b, int64_t p, int64_t jv, const Parent<V>& parent, const V* moved, const T* greatest,
               const T* inverse, V* total) const {
    const int64_t JV = this->JV;
    for (int h = 0; h < D; ++h) total[h] = V{};
    for (int64_t row = 0; row < this->C * this->K; ++row) {
      const int64_t own = this->seen_child(row, p), child = b * this->n_lower() + own;
      const V top = this->positions ? load<T>(greatest + (own * JV + jv) * L) : splat<T>(greatest[own]);
      const V inv = this->positions ? load<T>(inverse + (own * JV + jv) * L) : splat<T>(inverse[own]);
      V e[D];
      const V q = differences<T, Pose, kOffset>(this->pose + child * D, this->weights(row, jv), parent.mu,
                                                this->offset + row * D, parent.w, e);
      const V r = this->act[child] * (exp_of_negative<T>(parent.c - T(0.5) * q - top) * inv);
      for (int h = 0; h < D; ++h) {
        const V d = e[h] - moved[h];
        total[h] += r * d * d;
      }
    }
  }

  // The new mean and variance, in mu and s2; the mass in s0; how far the mean moved in t1.
  template <bool kOffset>
  void estimate(int64_t b, Parent<V>* parents, const T* greatest, const T* inverse) const {
    for (int64_t i = 0; i < this->P * this->JV; ++i) {
      Parent<V>& parent = parents[i];
      parent.s0 += parent.t0;
      const V mass = parent.s0 + this->eps, inv = T(1) / mass;
      V moved[D], total[D];
      bool again = false;
      for (int h = 0; h < D; ++h) {
        const V s1 = parent.s1[h] + parent.t1[h], s2 = parent.s2[h] + parent.t2[h];
        moved[h] = (1 - this->damping) * ((s1 - this->eps * parent.mu[h]) * inv);
        total[h] = s2 + moved[h] * (moved[h] * parent.s0 - T(2) * s1);
        const auto lost = s2 > T(4) * (total[h] + this->floor * mass);
        for (int l = 0; l < L; ++l) again |= lost[l] != 0;
      }
      if (again) squares<kOffset>(b, i / this->JV, i % this->JV, parent, moved, greatest, inverse, total);
      for (int h = 0; h < D; ++h) {
        parent.mu[h] += moved[h];
        parent.s2[h] = total[h] * inv + this->floor;
        parent.t1[h] = moved[h];
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
          if (last)
            out_act[at] = T(sigmoid(logit));
          else
            log_ap[i * L + l] = log_sigmoid(logit) - 0.5 * logs[l];
        }
        if (last) from_lanes<T>(parent.mu, out_pose + ((b * this->J + jv * L) * this->P + p) * D, this->P * D, n, D);
        if (saved) {
          T* all = saved + (b * this->P + p) * this->kept() * this->J + jv * L;
          T* to = all + t * kState * this->J;
          for (int h = 0; h < D; ++h) {
            store_lanes<T>(to + h * this->J, parent.t1[h], n);
            store_lanes<T>(to + (kVariance + h) * this->J, parent.s2[h], n);
            if (!t) store_lanes<T>(all + (this->n_iters * kState + h) * this->J, parent.t2[h], n);
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
    const int64_t own = this->n_lower(), first_size = own * (D + 1) / L + 1;
    const int64_t shares = this->positions ? own * this->JV : own / L + 1;
    Records<Parent<V>> records(this->P * this->JV);
    Buffer<T> numbers(first_size + 2 * shares);
    Parent<V>* parents = records.get();
    T *weighted = reinterpret_cast<T*>(numbers.get()), *greatest = weighted + first_size * L,
      *inverse = greatest + shares * L;
    std::vector<double> log_ap(this->P * this->JV * L, -std::numeric_limits<double>::infinity());
    for (int64_t b = from; b < to; ++b) {
      this->template first<kOffset>(b, parents, weighted);
      finish(b, 0, parents, log_ap);
      for (int64_t t = 1; t < this->n_iters; ++t) {
        sums<kOffset>(b, parents, greatest, inverse, t == this->n_iters - 1);
        estimate<kOffset>(b, parents, greatest, inverse);
        finish(b, t, parents, log_ap);
      }
      if (coupling && this->n_iters == 1) start_coupling(b);
    }
  }

  void store_coupling(int64_t b, const Block& block, int64_t row0, const V* r) const {
    for (const auto& run : block.runs)
      for (const Visit& visit : run)
        for (int64_t jv = 0; jv < this->JV; ++jv)
          store_lanes<T>(this->of_coupling(coupling, b, visit.place, row0 + visit.row) + jv * L,
                         r[visit.slot * this->JV + jv], this->width(jv));
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
      const WithoutSubnormals faster;
      const int64_t from = task * this->B / tasks, to = (task + 1) * this->B / tasks;
      this->offset ? images<true>(from, to) : images<false>(from, to);
    });
  }
};

}  // namespace
}  // namespace torchcaps
