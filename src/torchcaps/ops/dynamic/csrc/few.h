// The forward pass for fewer images than a vector has lanes, as when a trained network is asked about one.
//
// Here the lanes hold numbers of a vote, so that none is idle. Lower capsules are taken in groups of as many as there
// are lanes: after a transposition the lanes of a logit are lower capsules, and softmax is the one of passes.h.
#pragma once

#include "passes.h"

namespace torchcaps {
namespace {

constexpr int64_t kKeptBytes = 1 << 21;  // of votes, to stay near: beyond, they are made anew in every iteration
constexpr int64_t kFewImages = 4;        // at most, which share a load of a matrix
constexpr int64_t kFewParts = 16;        // cuts of the sum over lower capsules

template <class T>
struct Few : Problem<T> {
  static constexpr int L = kLanes<T>;
  explicit Few(const Problem<T>& p) : Problem<T>(p) {}
  int64_t width() const { return (this->d_out + L - 1) / L; }  // vectors of a vote
  int64_t all() const { return this->J * width(); }            // vectors in the votes of one capsule
  int64_t groups() const { return (this->I + L - 1) / L; }
  int members(int64_t group) const { return static_cast<int>(std::min<int64_t>(L, this->I - group * L)); }
  int64_t votes_of_group() const { return this->B * L * all(); }
  bool keeps() const { return groups() * votes_of_group() * kBytes <= kKeptBytes; }
};

// Whether this is less work, that of the transpositions counted, than lanes of which most are idle.
template <class T>
bool are_few(const Problem<T>& p) {
  return p.B <= kFewImages && 4 * p.B * Few<T>(p).width() <= p.d_out;
}

// n <= kLanes numbers, and zeros.
template <class T>
inline Vec<T> load_some(const T* from, int64_t n) {
  if (n >= kLanes<T>) return load(from);
  Vec<T> v = splat<T>(0);
  std::memcpy(&v, from, static_cast<size_t>(n) * sizeof(T));
  return v;
}

// û of a group for all images, [B, L, J, width] vectors.
template <class T>
void votes_of(const Few<T>& p, int64_t group, Vec<T>* votes) {
  const int64_t width = p.width(), all = p.all();
  for (int64_t m = 0; m < p.members(group); ++m) {
    const int64_t i = group * p.L + m;
    for (int64_t j = 0; j < p.J; ++j) {
      const T* matrix = p.matrices(i) + j * p.d_in * p.d_out;
      for (int64_t k = 0; k < width; ++k) {
        const int64_t left = p.d_out - k * p.L;
        stretches<static_cast<int>(kFewImages)>(p.B, [&](auto size, int64_t first) {
          constexpr int N = decltype(size)::value;
          const T* u = p.u + (first * p.I + i) * p.d_in;
          Vec<T> acc[N];
#pragma GCC unroll 8
          for (int b = 0; b < N; ++b) acc[b] = splat<T>(0);
          for (int64_t d = 0; d < p.d_in; ++d) {
            const Vec<T> row = load_some(matrix + d * p.d_out + k * p.L, left);
#pragma GCC unroll 8
            for (int b = 0; b < N; ++b) acc[b] += row * u[b * p.I * p.d_in + d];
          }
#pragma GCC unroll 8
          for (int b = 0; b < N; ++b) votes[((first + b) * p.L + m) * all + j * width + k] = acc[b];
        });
      }
    }
  }
}

// Logits of one image, lanes of which are the lower capsules of a group: b0 + û·V, and b0 alone at first (total null).
template <class T>
void logits_of(const Few<T>& p, int64_t group, const Vec<T>* votes, const Vec<T>* total, Vec<T>* b) {
  constexpr int L = kLanes<T>;
  const int64_t width = p.width(), all = p.all();
  const int members = p.members(group);
  for (int64_t j = 0; j < p.J; ++j) {
    b[j] = splat<T>(0);
    for (int m = 0; p.b0 && m < members; ++m) b[j][m] = p.b0[(group * L + m) * p.J + j];
    if (!total) continue;
    Vec<T> x[L];
#pragma GCC unroll 16
    for (int m = 0; m < L; ++m) {
      x[m] = splat<T>(0);
      if (m >= members) continue;
      for (int64_t k = 0; k < width; ++k) x[m] += votes[m * all + j * width + k] * total[j * width + k];
    }
    transpose<T>(x);
    for (int l = 0; l < L; l += 2) b[j] += x[l] + x[l + 1];
  }
}

// sum += Σ_i c_ij û_ij of one image over a group.
template <class T>
void add_weighted(const Few<T>& p, int64_t group, const Vec<T>* votes, const Vec<T>* c, Vec<T>* sum) {
  const int64_t width = p.width(), all = p.all();
  for (int m = 0; m < p.members(group); ++m) {
    for (int64_t j = 0; j < p.J; ++j) {
      const T share = reinterpret_cast<const T*>(c + j)[m];
      for (int64_t k = j * width; k < (j + 1) * width; ++k) sum[k] += share * votes[m * all + k];
    }
  }
}

// The weighted sums of one iteration, [parts, B, J, width] vectors, of parts that no number of threads changes.
template <class T>
bool few_pass(const Few<T>& p, int64_t t, int64_t parts, Vec<T>* kept, const Vec<T>* total, Vec<T>* partial,
              T* coupling) {
  const int64_t all = p.all();
  return parallel(parts, p.threads, [&](int64_t part) {
    Buffer<T> own(p.keeps() ? 0 : p.votes_of_group()), c(p.J);
    Vec<T>* sums = partial + part * p.B * all;
    std::fill(sums, sums + p.B * all, splat<T>(0));
    for (int64_t group = part * p.groups() / parts; group < (part + 1) * p.groups() / parts; ++group) {
      Vec<T>* votes = p.keeps() ? kept + group * p.votes_of_group() : own.get();
      if (t == 0 || !p.keeps()) votes_of(p, group, votes);
      for (int64_t b = 0; b < p.B; ++b, votes += p.L * all) {
        logits_of(p, group, votes, t == 0 ? nullptr : total + b * all, c.get());
        softmax<T>(p, c.get());
        add_weighted(p, group, votes, c.get(), sums + b * all);
        for (int64_t m = 0; coupling && m < p.members(group); ++m) {
          for (int64_t j = 0; j < p.J; ++j) coupling[(b * p.I + group * p.L + m) * p.J + j] = c[j][m];
        }
      }
    }
  });
}

template <class T>
bool few_forward(const Few<T>& p, T* states, T* pose, T* activation, T* coupling) {
  const int64_t all = p.all(), parts = std::min(p.groups(), kFewParts);
  Buffer<T> kept(p.keeps() ? p.groups() * p.votes_of_group() : 0), total(p.B * all), partial(parts * p.B * all);
  Buffer<T> s(p.J * p.d_out), v(p.J * p.d_out), lengths(p.J);  // of all images, one in each lane
  std::fill(total.get(), total + p.B * all, splat<T>(0));
  for (int64_t t = 0; t < p.n_iters; ++t) {
    const bool last = t == p.n_iters - 1;
    if (!few_pass(p, t, parts, kept.get(), total.get(), partial.get(), last ? coupling : nullptr)) return false;
    std::fill(s.get(), s + p.J * p.d_out, splat<T>(0));
    for (int64_t b = 0; b < p.B; ++b) {
      for (int64_t n = 0; n < p.J * p.d_out; ++n) {
        const int64_t k = n / p.d_out * p.width() + n % p.d_out / p.L, l = n % p.d_out % p.L;
        T sum = p.bias ? p.bias[n] : T(0);
        for (int64_t part = 0; part < parts; ++part) sum += partial[(part * p.B + b) * all + k][l];
        s[n][b] = states[(t * p.B + b) * p.J * p.d_out + n] = sum;
      }
    }
    squash<T>(p, s.get(), v.get(), lengths.get());
    for (int64_t b = 0; b < p.B; ++b) {
      for (int64_t n = 0; n < p.J * p.d_out; ++n) {
        total[b * all + n / p.d_out * p.width() + n % p.d_out / p.L][n % p.d_out % p.L] += v[n][b];
        if (last) pose[b * p.J * p.d_out + n] = v[n][b];
      }
      for (int64_t j = 0; last && j < p.J; ++j) activation[b * p.J + j] = lengths[j][b];
    }
  }
  return true;
}

}  // namespace
}  // namespace torchcaps
