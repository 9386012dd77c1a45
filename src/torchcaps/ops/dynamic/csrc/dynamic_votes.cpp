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

template <class T>
struct Votes : Sizes {
  typedef Vec<T> V;
  static constexpr int L = kLanes<T>;
  const int64_t types, P, vectors, groups;  // vectors of places in what is routed together; how many of these
  const bool together, last_only;
  const T *votes, *bias;  // [B, types, J, d_out, P]; [J, d_out] or null

  Votes(const Extents& n, const T* votes, const T* bias)
      : Sizes{n.B, n.types, n.J, n.d_out, n.d_out, n.n_iters, n.leaky != 0, n.threads}, types(n.types), P(n.P),
        vectors(n.together ? (n.P + L - 1) / L : 1), groups(n.together ? n.B : n.B * ((n.P + L - 1) / L)),
        together(n.together != 0), last_only(n.last_only != 0), votes(votes), bias(bias) {}

  int64_t per_image() const { return groups / std::max<int64_t>(B, 1); }

  // Where the k-th vector of places of a group begins, and how many of its lanes are places.
  int64_t from(int64_t group, int64_t k) const { return (together ? k : group % per_image()) * L; }
  int lanes(int64_t group, int64_t k) const { return int(std::min<int64_t>(L, P - from(group, k))); }

  // Rows of places: `row` is one of all rows of an image.
  V read(const T* numbers, int64_t rows, int64_t group, int64_t row, int64_t k) const {
    const T* at = numbers + (group / per_image() * rows + row) * P + from(group, k);
    const int n = lanes(group, k);
    if (n == L) return load(at);
    V x = splat<T>(0);
    std::memcpy(&x, at, n * sizeof(T));
    return x;
  }
  void write(T* numbers, int64_t rows, int64_t group, int64_t row, int64_t k, V x) const {
    T* at = numbers + (group / per_image() * rows + row) * P + from(group, k);
    const int n = lanes(group, k);
    if (n == L) return store(at, x);
    std::memcpy(at, &x, n * sizeof(T));
  }

  int64_t n_logits() const { return J * vectors; }  // of a lower type, vectors
  int64_t n_poses() const { return all() * vectors; }
};

// Routes a group, and goes the way back; vectors are laid out [J][d_out][vectors] and [J][vectors].
template <class T>
class Group {
 public:
  typedef Vec<T> V;
  static constexpr int L = kLanes<T>;

  explicit Group(const Votes<T>& p)
      : p(p), couplings_(p.n_iters * p.types * p.n_logits()), s_(p.n_iters * p.n_poses()),
        v_(p.n_iters * p.n_poses()), votes_(p.types * p.n_poses()), logits_(p.types * p.n_logits()),
        lengths_(p.n_logits()) {}

  // All iterations: s, v and couplings of each.
  void forward(int64_t group) {
    fetch(group);
    std::fill(logits_.get(), logits_ + p.types * p.n_logits(), splat<T>(0));
    for (int64_t t = 0; t < p.n_iters; ++t) {
      begin(group, s(t));
      for (int64_t i = 0; i < p.types; ++i) {
        V* b = logits_ + i * p.n_logits();
        if (t > 0) add_agreement(i, v(t - 1), b);
        V* c = couplings(t, i);
        std::copy(b, b + p.n_logits(), c);
        softmax_of_type(group, c);
        add_weighted(i, c, s(t));
      }
      squash_all(s(t), v(t));
    }
  }

  void store_results(int64_t group, T* pose, T* activation) {
    for (int64_t j = 0; j < p.J; ++j)
      for (int64_t k = 0; k < p.vectors; ++k) {
        for (int64_t e = 0; e < p.d_out; ++e)
          p.write(pose, p.all(), group, j * p.d_out + e, k, v(p.n_iters - 1)[(j * p.d_out + e) * p.vectors + k]);
        p.write(activation, p.J, group, j, k, lengths_[j * p.vectors + k]);
      }
  }

  // After forward(): the gradient of the group's votes; adds to that of the bias, [J][d_out].
  void backward(int64_t group, const T* d_pose, const T* d_activation, T* d_votes, double* d_bias) {
    const int64_t last = p.n_iters - 1, n = p.n_logits();
    Buffer<T> dv(p.n_poses()), dlength(n), ds(p.n_iters * p.n_poses()), db(p.n_iters * p.types * n), dc(n);
    for (int64_t j = 0; j < p.J; ++j)
      for (int64_t k = 0; k < p.vectors; ++k) {
        for (int64_t e = 0; e < p.d_out; ++e)
          dv[(j * p.d_out + e) * p.vectors + k] = p.read(d_pose, p.all(), group, j * p.d_out + e, k);
        dlength[j * p.vectors + k] = p.read(d_activation, p.J, group, j, k);
      }
    std::fill(db.get(), db + p.n_iters * p.types * n, splat<T>(0));
    for (int64_t t = last; t >= 0; --t) {
      V* own = ds + t * p.n_poses();
      squash_back(s(t), v(t), dv.get(), t == last ? dlength.get() : nullptr, own);
      for (int64_t e = 0; e < p.all(); ++e)
        for (int64_t k = 0; k < p.vectors; ++k) d_bias[e] += sum_of_lanes<T>(own[e * p.vectors + k], p.lanes(group, k));
      if (t == 0 || p.last_only) break;
      std::fill(dv.get(), dv + p.n_poses(), splat<T>(0));
      for (int64_t i = 0; i < p.types; ++i) {
        std::fill(dc.get(), dc + n, splat<T>(0));
        add_agreement(i, own, dc.get());
        softmax_back(couplings(t, i), dc.get());
        V *after = db + (t * p.types + i) * n, *before = db + ((t - 1) * p.types + i) * n;
        for (int64_t k = 0; k < n; ++k) before[k] = after[k] + dc[k];
        add_weighted(i, before, dv.get());
      }
    }
    for (int64_t i = 0; i < p.types; ++i) {
      for (int64_t j = 0; j < p.J; ++j)
        for (int64_t e = 0; e < p.d_out; ++e)
          for (int64_t k = 0; k < p.vectors; ++k) {
            const int64_t row = j * p.d_out + e, at = row * p.vectors + k, share = j * p.vectors + k;
            V x = splat<T>(0);
            for (int64_t t = p.last_only ? last : 0; t <= last; ++t) {
              x += couplings(t, i)[share] * ds[t * p.n_poses() + at];
              if (t < last && !p.last_only) x += db[(t * p.types + i) * n + share] * v(t)[at];
            }
            p.write(d_votes, p.types * p.all(), group, i * p.all() + row, k, x);
          }
    }
  }

 private:
  V* couplings(int64_t t, int64_t i) { return couplings_ + (t * p.types + i) * p.n_logits(); }
  V* s(int64_t t) { return s_ + t * p.n_poses(); }
  V* v(int64_t t) { return v_ + t * p.n_poses(); }

  // The votes of all lower types; 0 in lanes without a place.
  void fetch(int64_t group) {
    for (int64_t row = 0; row < p.types * p.all(); ++row)
      for (int64_t k = 0; k < p.vectors; ++k)
        votes_[row * p.vectors + k] = p.read(p.votes, p.types * p.all(), group, row, k);
  }

  void begin(int64_t group, V* sum) const {
    for (int64_t row = 0; row < p.all(); ++row)
      for (int64_t k = 0; k < p.vectors; ++k) {
        V x = splat(p.bias ? p.bias[row] : T(0));
        for (int l = p.lanes(group, k); l < L; ++l) x[l] = 0;
        sum[row * p.vectors + k] = x;
      }
  }

  void add_agreement(int64_t i, const V* with, V* b) {  // b[j] += Σ_d û_ijd with_jd
    const V* votes = votes_ + i * p.n_poses();
    for (int64_t j = 0; j < p.J; ++j)
      for (int64_t k = 0; k < p.vectors; ++k) {
        V part[2] = {splat<T>(0), splat<T>(0)};
        const int64_t at = j * p.d_out * p.vectors + k;
        for (int64_t e = 0; e < p.d_out; ++e) part[e % 2] += votes[at + e * p.vectors] * with[at + e * p.vectors];
        b[j * p.vectors + k] += part[0] + part[1];
      }
  }

  void add_weighted(int64_t i, const V* c, V* sum) {  // sum[j][d] += c[j] û_ijd
    const V* votes = votes_ + i * p.n_poses();
    for (int64_t j = 0; j < p.J; ++j)
      for (int64_t k = 0; k < p.vectors; ++k) {
        const V share = c[j * p.vectors + k];
        const int64_t at = j * p.d_out * p.vectors + k;
        for (int64_t e = 0; e < p.d_out; ++e) sum[at + e * p.vectors] += share * votes[at + e * p.vectors];
      }
  }

  void softmax_of_type(int64_t group, V* b) const {
    if (!p.together) return softmax<T>(p, b);
    const T none = -std::numeric_limits<T>::infinity();
    V most = splat(none);
    for (int64_t k = 0; k < p.n_logits(); ++k) {
      for (int l = p.lanes(group, k % p.vectors); l < L; ++l) b[k][l] = none;
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
  void squash_all(const V* s, V* v) {
    if (!p.together) return squash<T>(p, s, v, lengths_.get());
    for (int64_t j = 0; j < p.J; ++j) {
      const int64_t at = j * p.d_out * p.vectors, n = p.d_out * p.vectors;
      const Long<T> whole(s + at, n);
      for (int64_t e = 0; e < n; ++e) v[at + e] = s[at + e] * whole.factor;
      for (int64_t k = 0; k < p.vectors; ++k) lengths_[j * p.vectors + k] = length(v + at + k);
    }
  }

  // The length of a pose at each place; rounding alone can take it beyond 1.
  V length(const V* pose) const {
    V most = splat<T>(0), sum = splat<T>(0);
    for (int64_t e = 0; e < p.d_out; ++e) {
      const V x = pose[e * p.vectors], size = x < splat<T>(0) ? -x : x;
      most = most >= size ? most : size;
    }
    const V scale = most == splat<T>(0) ? splat<T>(1) : most;
    for (int64_t e = 0; e < p.d_out; ++e) {
      const V x = pose[e * p.vectors] / scale;
      sum += x * x;
    }
    for (int l = 0; l < L; ++l) sum[l] = std::sqrt(sum[l]);
    sum *= scale;
    return sum > splat<T>(1) ? splat<T>(1) : sum;
  }

  void squash_back(const V* s, const V* v, const V* dv, const V* dlength, V* ds) {
    if (!p.together) return squash_backward<T>(p, s, dv, dlength, ds);
    std::copy(dv, dv + p.n_poses(), ds);
    for (int64_t j = 0; j < p.J; ++j) {
      const int64_t at = j * p.d_out * p.vectors, n = p.d_out * p.vectors;
      for (int64_t k = 0; dlength && k < p.vectors; ++k) {
        const V far = length(v + at + k), none = splat<T>(0), one = splat<T>(1);
        const V slope = far == none ? none : dlength[j * p.vectors + k] / (far == none ? one : far);
        for (int64_t e = 0; e < p.d_out; ++e) ds[at + e * p.vectors + k] += slope * v[at + e * p.vectors + k];
      }
      const Long<T> whole(s + at, n);
      V part = splat<T>(0);
      for (int64_t e = 0; e < n; ++e) part += whole.direction(s[at + e]) * ds[at + e];
      const V radial = splat(sum_of_lanes<T>(part, L));
      for (int64_t e = 0; e < n; ++e) {
        const V direction = whole.direction(s[at + e]);
        ds[at + e] = whole.factor * (ds[at + e] - radial * direction) + whole.along * radial * direction;
      }
    }
  }

  // A vector of many lanes: what squash makes of it, ‖v‖ / n across it and d‖v‖ / dn along it.
  template <class Number>
  struct Long {
    Long(const Vec<Number>* s, int64_t n) {
      Vec<Number> most = splat<Number>(0);
      for (int64_t e = 0; e < n; ++e) {
        const Vec<Number> size = s[e] < splat<Number>(0) ? -s[e] : s[e];
        most = most >= size ? most : size;
      }
      Number largest = most[0];
      for (int l = 1; l < kLanes<Number>; ++l) largest = largest >= most[l] ? largest : most[l];
      scale = largest == 0 ? 1 : largest;
      Vec<Number> squared = splat<Number>(0);
      for (int64_t e = 0; e < n; ++e) squared += (s[e] / scale) * (s[e] / scale);
      const double below = sum_of_lanes<Number>(squared, kLanes<Number>);
      length = below == 0 ? 1 : std::sqrt(below);
      const double far = below == 0 ? 0 : length * scale, q = far > 1 ? 1 / far : far, under = 1 + q * q;
      factor = Number(q / under);
      along = Number(far > 1 ? 2 * (q / under) * (q / under) * q : 2 * q / (under * under));
    }
    Vec<Number> direction(Vec<Number> x) const { return x / scale / Number(length); }
    Number scale, factor, along;
    double length;
  };

  const Votes<T>& p;
  Buffer<T> couplings_, s_, v_, votes_, logits_, lengths_;
};

// Calls body(group) for all groups, cut into tasks by the sizes alone; each has a Group of its own.
template <class T, class Body>
bool over_groups(const Votes<T>& p, int64_t tasks, const Body& body) {
  return parallel(tasks, p.threads, [&](int64_t task) {
    Group<T> group(p);
    for (int64_t g = task * p.groups / tasks; g < (task + 1) * p.groups / tasks; ++g) body(task, group, g);
  });
}

template <class T>
int64_t n_tasks(const Votes<T>& p) {
  return std::max<int64_t>(1, std::min<int64_t>(p.groups, 4 * kParts));
}

// 0, or 1 where memory ran out.
template <class T>
int32_t forward(const Extents& n, const T* votes, const T* bias, T* pose, T* activation) {
  try {
    const Votes<T> p(n, votes, bias);
    const auto route = [&](int64_t, Group<T>& group, int64_t g) {
      group.forward(g);
      group.store_results(g, pose, activation);
    };
    return over_groups(p, n_tasks(p), route) ? 0 : 1;
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
    const auto route = [&](int64_t task, Group<T>& group, int64_t g) {
      group.forward(g);
      group.backward(g, d_pose, d_activation, d_votes, sums.data() + task * all);
    };
    if (!over_groups(p, tasks, route)) return 1;
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
