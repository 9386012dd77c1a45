// Dynamic routing of votes that a convolution has laid out, forward and backward through all iterations.
//
// The lanes of a vector are places of a map. What is routed together, one vector of places or a whole map, stays in the
// nearest caches through all iterations: votes come from memory once, and their gradient goes there once. Nothing is
// kept for the backward pass, which routes anew. ops/dynamic/votes.py says what is computed.
#include <vector>

#include "passes.h"

namespace torchcaps {
namespace {

struct Extents {
  int64_t B, types, J, d_out, P;  // images, lower and upper types, numbers of a pose, places
  int64_t n_iters, leaky, together, last_only, threads;
};

constexpr int64_t kAhead = 4;  // vectors of places that are read together, though each is routed by itself
constexpr int kNumbers = 8;    // of a pose, that are accumulated at once

// A stretch of an image's places that is read and written together: n vectors from `first` on.
struct Run {
  int64_t image, first, n;
};

template <class T>
struct Votes : Sizes {
  typedef Vec<T> V;
  static constexpr int L = kLanes<T>;
  const int64_t types, P, vectors;  // lower types, places, and vectors of places in what is routed together
  const bool together, last_only;
  const T *votes, *bias;  // [B, types, J, d_out, P]; [J, d_out] or null

  Votes(const Extents& n, const T* votes, const T* bias)
      : Sizes{n.B, n.types, n.J, n.d_out, n.d_out, n.n_iters, n.leaky != 0, n.threads}, types(n.types), P(n.P),
        vectors(n.together ? of_image() : 1), together(n.together != 0), last_only(n.last_only != 0), votes(votes),
        bias(bias) {}

  int64_t of_image() const { return (P + L - 1) / L; }
  int64_t longest() const { return together ? of_image() : std::min(kAhead, of_image()); }
  int64_t runs_per_image() const { return (of_image() + longest() - 1) / longest(); }
  int64_t runs() const { return B * runs_per_image(); }
  Run run(int64_t r) const {
    const int64_t first = r % runs_per_image() * longest();
    return {r / runs_per_image(), first, std::min(longest(), of_image() - first)};
  }

  int lanes(int64_t vector) const { return int(std::min<int64_t>(L, P - vector * L)); }  // that are places

  int64_t n_logits() const { return J * vectors; }  // of a lower type, vectors, in what is routed together
  int64_t n_poses() const { return all() * vectors; }

  // Where the vectors of a run lie, row by row of its image. Numbers of a pose stand side by side, and so does all that
  // is routed together.
  std::vector<int64_t> places_of(int64_t groups, int64_t types, int64_t size) const {
    std::vector<int64_t> at;
    for (int64_t i = 0; i < groups; ++i)
      for (int64_t j = 0; j < types; ++j)
        for (int64_t e = 0; e < size; ++e)
          for (int64_t k = 0; k < longest(); ++k)
            at.push_back((together ? (i * types + j) * vectors + k : (k * groups + i) * types + j) * size + e);
    return at;
  }

  // Reads rows of places to where `at` says; 0 in lanes without a place.
  void read(const T* numbers, const std::vector<int64_t>& at, const Run& run, V* to) const {
    const int64_t rows = int64_t(at.size()) / longest();
    for (int64_t row = 0; row < rows; ++row) {
      const T* from = numbers + (run.image * rows + row) * P + run.first * L;
      for (int64_t k = 0; k < run.n; ++k, from += L) {
        const int n = lanes(run.first + k);
        V x = splat<T>(0);
        if (n == L)
          x = load(from);
        else
          std::memcpy(&x, from, n * sizeof(T));
        to[at[row * longest() + k]] = x;
      }
    }
  }

  void write(T* numbers, const std::vector<int64_t>& at, const Run& run, const V* from) const {
    const int64_t rows = int64_t(at.size()) / longest();
    for (int64_t row = 0; row < rows; ++row) {
      T* to = numbers + (run.image * rows + row) * P + run.first * L;
      for (int64_t k = 0; k < run.n; ++k, to += L) {
        const int n = lanes(run.first + k);
        const V x = from[at[row * longest() + k]];
        if (n == L)
          store(to, x);
        else
          std::memcpy(to, &x, n * sizeof(T));
      }
    }
  }
};

// Routes the places of a run and goes the way back: all of them together, or one vector after the other. Vectors are
// laid out [J][vectors][d_out] and [J][vectors] within what is routed together.
template <class T>
class Routed {
 public:
  typedef Vec<T> V;
  static constexpr int L = kLanes<T>;

  explicit Routed(const Votes<T>& p)
      : p(p), slots_(p.together ? 1 : p.longest()), votes_(slots_ * p.types * p.n_poses()),
        poses_(slots_ * p.n_poses()), lengths_(slots_ * p.n_logits()), couplings_(p.n_iters * p.types * p.n_logits()),
        s_(p.n_iters * p.n_poses()), v_(p.n_iters * p.n_poses()), logits_(p.types * p.n_logits()),
        at_votes_(p.places_of(p.types, p.J, p.d_out)), at_poses_(p.places_of(1, p.J, p.d_out)),
        at_lengths_(p.places_of(1, p.J, 1)) {}

  void forward(const Run& run, T* pose, T* activation) {
    p.read(p.votes, at_votes_, run, votes_.get());
    for (int64_t slot = 0; slot < slots(run); ++slot) {
      iterate(run, slot);
      std::copy(v(p.n_iters - 1), v(p.n_iters - 1) + p.n_poses(), poses_ + slot * p.n_poses());
    }
    p.write(pose, at_poses_, run, poses_.get());
    p.write(activation, at_lengths_, run, lengths_.get());
  }

  // The gradient of the run's votes; adds to that of the bias, [J][d_out].
  void backward(const Run& run, const T* d_pose, const T* d_activation, T* d_votes, double* d_bias) {
    p.read(p.votes, at_votes_, run, votes_.get());
    Buffer<T> dv(slots_ * p.n_poses()), dlength(slots_ * p.n_logits());
    p.read(d_pose, at_poses_, run, dv.get());
    p.read(d_activation, at_lengths_, run, dlength.get());
    for (int64_t slot = 0; slot < slots(run); ++slot) {
      iterate(run, slot);
      back(run, slot, dv + slot * p.n_poses(), dlength + slot * p.n_logits(), d_bias);
    }
    p.write(d_votes, at_votes_, run, votes_.get());
  }

 private:
  int64_t slots(const Run& run) const { return p.together ? 1 : run.n; }
  V* couplings(int64_t t, int64_t i) { return couplings_ + (t * p.types + i) * p.n_logits(); }
  V* s(int64_t t) { return s_ + t * p.n_poses(); }
  V* v(int64_t t) { return v_ + t * p.n_poses(); }
  V* votes(int64_t slot, int64_t i) { return votes_ + (slot * p.types + i) * p.n_poses(); }

  // All iterations of what is routed together: s, v and couplings of each.
  void iterate(const Run& run, int64_t slot) {
    const int64_t first = run.first + (p.together ? 0 : slot);
    std::fill(logits_.get(), logits_ + p.types * p.n_logits(), splat<T>(0));
    for (int64_t t = 0; t < p.n_iters; ++t) {
      begin(first, s(t));
      for (int64_t i = 0; i < p.types; ++i) {
        const V* of_type = votes(slot, i);
        V* b = logits_ + i * p.n_logits();
        if (t > 0) add_agreement(of_type, v(t - 1), b);
        V* c = couplings(t, i);
        std::copy(b, b + p.n_logits(), c);
        softmax_of_type(first, c);
        add_weighted(of_type, c, s(t));
      }
      squash_all(s(t), v(t), lengths_ + slot * p.n_logits());
    }
  }

  // The way back; the votes become their gradient.
  void back(const Run& run, int64_t slot, V* dv, const V* dlength, double* d_bias) {
    const int64_t last = p.n_iters - 1, n = p.n_logits(), first = run.first + (p.together ? 0 : slot);
    Buffer<T> ds(p.n_iters * p.n_poses()), db(p.n_iters * p.types * n), dc(n);
    std::fill(db.get(), db + p.n_iters * p.types * n, splat<T>(0));
    for (int64_t t = last; t >= 0; --t) {
      V* own = ds + t * p.n_poses();
      squash_back(s(t), v(t), dv, t == last ? dlength : nullptr, own);
      for (int64_t j = 0; j < p.J; ++j)
        for (int64_t k = 0; k < p.vectors; ++k)
          for (int64_t e = 0; e < p.d_out; ++e)
            d_bias[j * p.d_out + e] += sum_of_lanes<T>(own[(j * p.vectors + k) * p.d_out + e], p.lanes(first + k));
      if (t == 0 || p.last_only) break;
      std::fill(dv, dv + p.n_poses(), splat<T>(0));
      for (int64_t i = 0; i < p.types; ++i) {
        const V* of_type = votes(slot, i);
        std::fill(dc.get(), dc + n, splat<T>(0));
        add_agreement(of_type, own, dc.get());
        softmax_back(couplings(t, i), dc.get());
        V *after = db + (t * p.types + i) * n, *before = db + ((t - 1) * p.types + i) * n;
        for (int64_t k = 0; k < n; ++k) before[k] = after[k] + dc[k];
        add_weighted(of_type, before, dv);
      }
    }
    std::vector<const V*> by, of;  // coefficients, and what they are multiplied with
    for (int64_t i = 0; i < p.types; ++i) {
      by.clear(), of.clear();
      for (int64_t t = p.last_only ? last : 0; t <= last; ++t) {
        by.push_back(couplings(t, i)), of.push_back(ds + t * p.n_poses());
        if (t < last) by.push_back(db + (t * p.types + i) * n), of.push_back(v(t));
      }
      combine(by, of, votes(slot, i));
    }
  }

  // sum[j][d] = Σ_m by_m[j] of_m[j][d]
  void combine(const std::vector<const V*>& by, const std::vector<const V*>& of, V* sum) const {
    for (int64_t j = 0; j < p.n_logits(); ++j)
      stretches<kNumbers>(p.d_out, [&](auto size, int64_t from) {
        constexpr int E = decltype(size)::value;
        const int64_t at = j * p.d_out + from;
        V acc[E];
#pragma GCC unroll 16
        for (int e = 0; e < E; ++e) acc[e] = splat<T>(0);
        for (size_t m = 0; m < by.size(); ++m) {
          const V factor = by[m][j], *x = of[m] + at;
#pragma GCC unroll 16
          for (int e = 0; e < E; ++e) acc[e] += factor * x[e];
        }
#pragma GCC unroll 16
        for (int e = 0; e < E; ++e) sum[at + e] = acc[e];
      });
  }

  void begin(int64_t first, V* sum) const {
    for (int64_t j = 0; j < p.J; ++j)
      for (int64_t k = 0; k < p.vectors; ++k)
        for (int64_t e = 0; e < p.d_out; ++e) {
          V x = splat(p.bias ? p.bias[j * p.d_out + e] : T(0));
          for (int l = p.lanes(first + k); l < L; ++l) x[l] = 0;
          sum[(j * p.vectors + k) * p.d_out + e] = x;
        }
  }

  // b[j] += Σ_d û_jd with_jd
  void add_agreement(const V* of_type, const V* with, V* b) const {
    for (int64_t j = 0; j < p.n_logits(); ++j)
      stretches<kNumbers>(p.d_out, [&](auto size, int64_t from) {
        constexpr int E = decltype(size)::value;
        const V *x = of_type + j * p.d_out + from, *y = with + j * p.d_out + from;
        V part[4] = {splat<T>(0), splat<T>(0), splat<T>(0), splat<T>(0)};
#pragma GCC unroll 16
        for (int e = 0; e < E; ++e) part[e % 4] += x[e] * y[e];
        b[j] += (part[0] + part[1]) + (part[2] + part[3]);
      });
  }

  // sum[j][d] += c[j] û_jd
  void add_weighted(const V* of_type, const V* c, V* sum) const {
    for (int64_t j = 0; j < p.n_logits(); ++j) {
      const V share = c[j], *x = of_type + j * p.d_out;
      V* to = sum + j * p.d_out;
#pragma GCC unroll 4
      for (int64_t e = 0; e < p.d_out; ++e) to[e] += share * x[e];
    }
  }

  void softmax_of_type(int64_t first, V* b) const {
    if (!p.together) return softmax<T>(p, b);
    const T none = -std::numeric_limits<T>::infinity();
    V most = splat(none);
    for (int64_t k = 0; k < p.n_logits(); ++k) {
      for (int l = p.lanes(first + k % p.vectors); l < L; ++l) b[k][l] = none;
      most = b[k] > most ? b[k] : most;
    }
    T top = most[0];
    for (int l = 1; l < L; ++l) top = most[l] > top ? most[l] : top;
    V sum = splat<T>(0);
    for (int64_t k = 0; k < p.n_logits(); ++k) sum += b[k] = exp_of_negative<T>(b[k] - top);
    const V share = splat(T(1) / sum_of_lanes<T>(sum, L));
    for (int64_t k = 0; k < p.n_logits(); ++k) b[k] *= share;
  }

  void softmax_back(const V* c, V* dc) const {
    if (!p.together) return softmax_backward<T>(p, c, dc);
    V mean = splat<T>(0);
    for (int64_t k = 0; k < p.n_logits(); ++k) mean += c[k] * dc[k];
    const V all = splat(sum_of_lanes<T>(mean, L));
    for (int64_t k = 0; k < p.n_logits(); ++k) dc[k] = c[k] * (dc[k] - all);
  }

  // Of each type the poses at all places are one long vector, where these are routed together.
  void squash_all(const V* s, V* v, V* lengths) const {
    if (!p.together) return squash<T>(p, s, v, lengths);
    const int64_t n = p.d_out * p.vectors;
    for (int64_t j = 0; j < p.J; ++j) {
      const Long whole(s + j * n, n);
      for (int64_t e = 0; e < n; ++e) v[j * n + e] = s[j * n + e] * whole.factor;
    }
    for (int64_t k = 0; k < p.n_logits(); ++k) lengths[k] = length(v + k * p.d_out);
  }

  // The length of a pose at each place; rounding alone can take it beyond 1.
  V length(const V* pose) const {
    V most = splat<T>(0), sum = splat<T>(0);
    for (int64_t e = 0; e < p.d_out; ++e) {
      const V size = pose[e] < splat<T>(0) ? -pose[e] : pose[e];
      most = most >= size ? most : size;
    }
    const V scale = most == splat<T>(0) ? splat<T>(1) : most;
    for (int64_t e = 0; e < p.d_out; ++e) {
      const V x = pose[e] / scale;
      sum += x * x;
    }
    for (int l = 0; l < L; ++l) sum[l] = std::sqrt(sum[l]);
    sum *= scale;
    return sum > splat<T>(1) ? splat<T>(1) : sum;
  }

  void squash_back(const V* s, const V* v, const V* dv, const V* dlength, V* ds) const {
    if (!p.together) return squash_backward<T>(p, s, dv, dlength, ds);
    std::copy(dv, dv + p.n_poses(), ds);
    for (int64_t k = 0; dlength && k < p.n_logits(); ++k) {
      const V far = length(v + k * p.d_out), none = splat<T>(0), one = splat<T>(1);
      const V slope = far == none ? none : dlength[k] / (far == none ? one : far);
      for (int64_t e = k * p.d_out; e < (k + 1) * p.d_out; ++e) ds[e] += slope * v[e];
    }
    const int64_t n = p.d_out * p.vectors;
    for (int64_t j = 0; j < p.J; ++j) {
      const Long whole(s + j * n, n);
      V part = splat<T>(0);
      for (int64_t e = j * n; e < (j + 1) * n; ++e) part += whole.direction(s[e]) * ds[e];
      const V radial = splat(sum_of_lanes<T>(part, L));
      for (int64_t e = j * n; e < (j + 1) * n; ++e) {
        const V direction = whole.direction(s[e]);
        ds[e] = whole.factor * (ds[e] - radial * direction) + whole.along * radial * direction;
      }
    }
  }

  // A vector of many lanes: what squash makes of it, ‖v‖ / n across it and d‖v‖ / dn along it.
  struct Long {
    Long(const V* s, int64_t n) {
      V most = splat<T>(0), squared = splat<T>(0);
      for (int64_t e = 0; e < n; ++e) {
        const V size = s[e] < splat<T>(0) ? -s[e] : s[e];
        most = most >= size ? most : size;
      }
      T largest = most[0];
      for (int l = 1; l < L; ++l) largest = largest >= most[l] ? largest : most[l];
      scale = largest == 0 ? 1 : largest;
      for (int64_t e = 0; e < n; ++e) squared += (s[e] / scale) * (s[e] / scale);
      const double below = sum_of_lanes<T>(squared, L);
      length = below == 0 ? 1 : std::sqrt(below);
      const double far = below == 0 ? 0 : length * scale, q = far > 1 ? 1 / far : far, under = 1 + q * q;
      factor = T(q / under);
      along = T(far > 1 ? 2 * (q / under) * (q / under) * q : 2 * q / (under * under));
    }
    V direction(V x) const { return x / scale / T(length); }
    T scale, factor, along;
    double length;
  };

  const Votes<T>& p;
  const int64_t slots_;
  Buffer<T> votes_, poses_, lengths_, couplings_, s_, v_, logits_;
  const std::vector<int64_t> at_votes_, at_poses_, at_lengths_;
};

// Calls body(task, routed, run) for all runs, cut into tasks by the sizes alone; each has a Routed of its own.
template <class T, class Body>
bool over_runs(const Votes<T>& p, int64_t tasks, const Body& body) {
  return parallel(tasks, p.threads, [&](int64_t task) {
    Routed<T> routed(p);
    for (int64_t r = task * p.runs() / tasks; r < (task + 1) * p.runs() / tasks; ++r) body(task, routed, p.run(r));
  });
}

template <class T>
int64_t n_tasks(const Votes<T>& p) {
  return std::max<int64_t>(1, std::min<int64_t>(p.runs(), 4 * kParts));
}

// 0, or 1 where memory ran out.
template <class T>
int32_t forward(const Extents& n, const T* votes, const T* bias, T* pose, T* activation) {
  try {
    const Votes<T> p(n, votes, bias);
    const auto route = [&](int64_t, Routed<T>& routed, const Run& run) { routed.forward(run, pose, activation); };
    return over_runs(p, n_tasks(p), route) ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

template <class T>
int32_t backward(const Extents& n, const T* votes, const T* bias, const T* d_pose, const T* d_activation, T* d_votes,
                 T* d_bias) {
  try {
    const Votes<T> p(n, votes, bias);
    const int64_t tasks = n_tasks(p), all = p.all();
    std::vector<double> sums(tasks * all, 0.0);
    const auto route = [&](int64_t task, Routed<T>& routed, const Run& run) {
      routed.backward(run, d_pose, d_activation, d_votes, sums.data() + task * all);
    };
    if (!over_runs(p, tasks, route)) return 1;
    for (int64_t e = 0; e < all; ++e) {
      double total = 0;
      for (int64_t task = 0; task < tasks; ++task) total += sums[task * all + e];
      d_bias[e] = T(total);
    }
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace
}  // namespace torchcaps

// votes and their gradient [B, types, J, d_out, P], bias and its gradient [J, d_out], the former may be null;
// pose [B, J, d_out, P], activation [B, J, P], and their gradients. All contiguous. Returns 0, or 1 where memory ran out.
#define TORCHCAPS_VOTES(T, suffix)                                                                                    \
  TORCHCAPS_EXPORT int32_t forward_##suffix(const torchcaps::Extents* n, const T* votes, const T* bias, T* pose,      \
                                            T* activation) {                                                          \
    return torchcaps::forward<T>(*n, votes, bias, pose, activation);                                                  \
  }                                                                                                                   \
  TORCHCAPS_EXPORT int32_t backward_##suffix(const torchcaps::Extents* n, const T* votes, const T* bias,              \
                                             const T* d_pose, const T* d_activation, T* d_votes, T* d_bias) {         \
    return torchcaps::backward<T>(*n, votes, bias, d_pose, d_activation, d_votes, d_bias);                            \
  }

TORCHCAPS_VOTES(float, f32)
TORCHCAPS_VOTES(double, f64)
