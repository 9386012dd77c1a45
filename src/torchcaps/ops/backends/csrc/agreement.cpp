// Votes weighted by their agreement with the sum of all votes for a capsule; ops/agreement.py calls it, and has the sums.
//
// Images lie in lanes, so that sums over the numbers of a vote stay within a lane. Votes are read as a product of
// matrices wrote them, and their gradients are written over them.
#include <algorithm>

#include "parallel.h"
#include "simd.h"

namespace torchcaps {
namespace {

template <class T>
struct Agreement {
  static constexpr int L = kLanes<T>;
  int64_t I, J, E, B;  // lower and upper capsules, numbers of a vote, images: a multiple of the lanes
  bool over_lower;     // the softmax, of degrees; else it is over upper capsules, of scaled agreements
  T constant;          // the least square of a vote's length, or the scale
  int64_t threads;
  T* votes;            // [I, J, E, B]
  const T* prior;      // [I, J], added to the shares, or null
  T* shares;           // [I, J, B]
  T* sums;             // [J, E, B]: of weighted votes, or the gradient of these
  T* d_shares;         // [I, J, B]; null in the forward pass

  // Upper capsules that compete are one task for each vector of images; others are tasks of their own.
  int64_t parts() const { return over_lower ? J : 1; }
  int64_t tasks() const { return B / L * parts(); }
};

// One vector of images, and upper capsules [from, to).
template <class T>
struct Task {
  const Agreement<T>& p;
  const int64_t from, to, at;
  Buffer<T> sum, other;     // [J, E]
  Buffer<T> slope, square;  // [I, J]: factors of the sum and of the vote itself in the gradient of a vote

  Task(const Agreement<T>& p, int64_t task)
      : p(p),
        from(p.over_lower ? task % p.J : 0),
        to(p.over_lower ? from + 1 : p.J),
        at(task / p.parts() * p.L),
        sum((to - from) * p.E),
        other((to - from) * p.E),
        slope(p.d_shares ? p.I * (to - from) : 0),
        square(p.d_shares ? p.I * (to - from) : 0) {}

  T* vote(int64_t i, int64_t j) const { return p.votes + (i * p.J + j) * p.E * p.B + at; }
  T* share(int64_t i, int64_t j) const { return p.shares + (i * p.J + j) * p.B + at; }
  T* d_share(int64_t i, int64_t j) const { return p.d_shares + (i * p.J + j) * p.B + at; }
  T* weighted(int64_t j, int64_t e) const { return p.sums + (j * p.E + e) * p.B + at; }
  Vec<T>* of(Buffer<T>& x, int64_t j) const { return x + (j - from) * p.E; }
  int64_t pair(int64_t i, int64_t j) const { return i * (to - from) + j - from; }
  Vec<T> prior(int64_t i, int64_t j) const { return splat<T>(p.prior ? p.prior[i * p.J + j] : T(0)); }

  template <class Body>
  void pairs(const Body& body) const {
    for (int64_t i = 0; i < p.I; ++i) {
      for (int64_t j = from; j < to; ++j) body(i, j);
    }
  }

  // Calls body(n, element) for each group that a softmax is over: its size, and its pair number k.
  template <class Body>
  void groups(const Body& body) const {
    if (p.over_lower) {
      for (int64_t j = from; j < to; ++j) body(p.I, [=](int64_t k) { return std::make_pair(k, j); });
    } else {
      for (int64_t i = 0; i < p.I; ++i) body(p.J, [=](int64_t k) { return std::make_pair(i, k); });
    }
  }

  // x_j = Σ_i w_ij û_ij, with weights from a function.
  template <class Weight>
  void add_up(Buffer<T>& x, const Weight& weight) {
    for (int64_t n = 0; n < (to - from) * p.E; ++n) x[n] = splat<T>(0);
    pairs([&](int64_t i, int64_t j) {
      const Vec<T> w = weight(i, j);
      const T* v = vote(i, j);
      Vec<T>* to_add = of(x, j);
      for (int64_t e = 0; e < p.E; ++e) to_add[e] += w * load(v + e * p.B);
    });
  }

  // Of a vote: its product with the sum of all, and its square.
  void measure(int64_t i, int64_t j, Vec<T>& product, Vec<T>& length) {
    const T* v = vote(i, j);
    const Vec<T>* all = of(sum, j);
    product = length = splat<T>(0);
    for (int64_t e = 0; e < p.E; ++e) {
      const Vec<T> x = load(v + e * p.B);
      product += x * all[e];
      length += x * x;
    }
  }

  Vec<T> per_length(Vec<T> length) const {
    const Vec<T> least = splat<T>(p.constant);
    return splat<T>(1) / (length > least ? length : least);
  }

  void forward() {
    add_up(sum, [](int64_t, int64_t) { return splat<T>(1); });
    pairs([&](int64_t i, int64_t j) {
      Vec<T> product, length;
      measure(i, j, product, length);
      store(share(i, j), product * (p.over_lower ? per_length(length) : splat<T>(p.constant)));
    });
    groups([&](int64_t n, const auto& element) {
      const auto place = [&](int64_t k) {
        const auto [i, j] = element(k);
        return share(i, j);
      };
      Vec<T> most = load(place(0)), total = splat<T>(0);
      for (int64_t k = 1; k < n; ++k) {
        const Vec<T> x = load(place(k));
        most = x > most ? x : most;
      }
      for (int64_t k = 0; k < n; ++k) {
        const Vec<T> x = exp_of_negative<T>(load(place(k)) - most);
        total += x;
        store(place(k), x);
      }
      for (int64_t k = 0; k < n; ++k) {
        const auto [i, j] = element(k);
        store(share(i, j), load(share(i, j)) / total + prior(i, j));
      }
    });
    add_up(other, [&](int64_t i, int64_t j) { return load(share(i, j)); });
    for (int64_t j = from; j < to; ++j) {
      for (int64_t e = 0; e < p.E; ++e) store(weighted(j, e), of(other, j)[e]);
    }
  }

  void backward() {
    add_up(sum, [](int64_t, int64_t) { return splat<T>(1); });
    pairs([&](int64_t i, int64_t j) {
      Vec<T> product, length, d = load(d_share(i, j));
      measure(i, j, product, length);
      for (int64_t e = 0; e < p.E; ++e) d += load(vote(i, j) + e * p.B) * load(weighted(j, e));
      store(d_share(i, j), d);
      // The derivative of the logit by the product, and that by the square of the vote, times two.
      const Vec<T> none = splat<T>(0), least = splat<T>(p.constant), per = p.over_lower ? per_length(length) : least;
      slope[pair(i, j)] = per;
      square[pair(i, j)] = p.over_lower ? (length > least ? T(-2) * product * per * per : none) : none;
    });
    groups([&](int64_t n, const auto& element) {
      Vec<T> mean = splat<T>(0);
      for (int64_t k = 0; k < n; ++k) {
        const auto [i, j] = element(k);
        mean += (load(share(i, j)) - prior(i, j)) * load(d_share(i, j));
      }
      for (int64_t k = 0; k < n; ++k) {
        const auto [i, j] = element(k);
        const Vec<T> d_logit = (load(share(i, j)) - prior(i, j)) * (load(d_share(i, j)) - mean);
        slope[pair(i, j)] *= d_logit;
        square[pair(i, j)] *= d_logit;
      }
    });
    add_up(other, [&](int64_t i, int64_t j) { return slope[pair(i, j)]; });
    pairs([&](int64_t i, int64_t j) {
      const Vec<T> c = load(share(i, j)), a = slope[pair(i, j)], b = square[pair(i, j)];
      const Vec<T>*s = of(sum, j), *t = of(other, j);
      T* v = vote(i, j);
      for (int64_t e = 0; e < p.E; ++e, v += p.B) {
        store(v, c * load(weighted(j, e)) + a * s[e] + t[e] + b * load(v));
      }
    });
  }
};

template <class T>
bool run(const Agreement<T>& p) {
  return parallel(p.tasks(), p.threads, [&](int64_t number) {
    Task<T> task(p, number);
    p.d_shares ? task.backward() : task.forward();
  });
}

}  // namespace
}  // namespace torchcaps

// 0, or 1 where something was thrown.
#define TORCHCAPS_AGREEMENT(T, suffix)                                                                                \
  TORCHCAPS_EXPORT int32_t agreement_##suffix(int64_t I, int64_t J, int64_t E, int64_t B, int64_t over_lower,        \
                                              double constant, int64_t threads, T* votes, const T* prior, T* shares, \
                                              T* sums, T* d_shares) {                                                \
    return torchcaps::run<T>({I, J, E, B, over_lower != 0, static_cast<T>(constant), threads, votes, prior, shares,  \
                              sums, d_shares}) ? 0 : 1;                                                              \
  }
TORCHCAPS_AGREEMENT(float, f32)
TORCHCAPS_AGREEMENT(double, f64)
