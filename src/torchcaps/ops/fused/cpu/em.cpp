// EM routing between 4×4 matrix capsules without ever storing the votes: forward and exact backward.
//
// A lane of a vector register is a type of parent: a vote of L types is 16 registers, and nothing has to be summed
// over lanes but a child's softmax. The walk is by child: all its votes are made once, for all parents that see it,
// stay in L1 for the E-step's softmax, and are added to the parents' sums (the M-step) in the same visit. So one pass
// over the votes is one E-step and one M-step, or one iteration of the backward pass, and nothing of the votes' size
// is written. An image is one thread's; results do not depend on the number of threads.
//
// Sums of squares are centred on the mean of the iteration before. Where the mean moved so far that the variance
// would cancel, that parent's variance is summed again around the new mean.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "parallel.h"
#include "simd.h"

using namespace torchcaps;

namespace {

constexpr int D = 16;            // numbers in a pose
// What is kept of a parent and an iteration for the backward pass: how far μ moved, what Σ r (V − μ) / mass is left by
// damping and by rounding, σ², logit and mass. (Rounding of μ may be much beside a small σ. Were it not known, the
// gradient of the votes would not be that of the numbers which were computed.)
constexpr int kLeft = D, kVariance = 2 * D, kLogit = 3 * D, kMass = 3 * D + 1, kState = 3 * D + 2;
constexpr double kLog2Pi = 1.8378770664093454836;
constexpr int64_t kRun = 256;  // children summed before the sum is put aside, so that long sums stay exact
constexpr int64_t kRows = 24;  // rows of weights that stay in L1 while all places use them

// Zeroed memory for n records made of vectors.
template <class Record>
class Records {
 public:
  explicit Records(int64_t n) : data_(static_cast<Record*>(::operator new(bytes(n), std::align_val_t(kBytes)))) {
    std::memset(static_cast<void*>(data_), 0, bytes(n));
  }
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;
  ~Records() { ::operator delete(data_, std::align_val_t(kBytes)); }
  Record* get() { return data_; }

 private:
  static size_t bytes(int64_t n) { return static_cast<size_t>(n > 0 ? n : 1) * sizeof(Record); }
  Record* data_;
};

inline Vec<float> vlog(Vec<float> x) {  // Cephes
  typedef Vec<float> V;
  typedef Int<float> I;
  for (int l = 0; l < kLanes<float>; ++l)
    if (!(x[l] >= std::numeric_limits<float>::min() && x[l] <= std::numeric_limits<float>::max())) {
      for (int k = 0; k < kLanes<float>; ++k) x[k] = std::log(x[k]);
      return x;
    }
  I e = ((I)x >> 23) - 126;
  V m = (V)(((I)x & 0x007fffff) | 0x3f000000);  // in [0.5, 1)
  const I low = m < 0.707106781186547524f;
  e += low;
  m = m + (V)((I)m & low) - 1.f;
  const V n = __builtin_convertvector(e, V);
  const V z = m * m;
  V p = m * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  p = p * m * z + n * -2.12194440e-4f - z * 0.5f;
  return m + p + n * 0.693359375f;
}

inline Vec<double> vlog(Vec<double> x) {
  for (int l = 0; l < kLanes<double>; ++l) x[l] = std::log(x[l]);
  return x;
}

template <class V>
inline V vmax(V a, V b) {
  return a < b ? b : a;
}

// Lanes kFirst, kFirst + kStep … of a and b, one after the other.
template <class T, int kFirst, int kStep, int... kLane>
inline Vec<T> pick(Vec<T> a, Vec<T> b, std::integer_sequence<int, kLane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (kFirst + kStep * kLane)...);
#else
  return __builtin_shuffle(a, b, Int<T>{(kFirst + kStep * kLane)...});
#endif
}

template <class T, int kFirst, int kStep>
inline Vec<T> pick(Vec<T> a, Vec<T> b) {
  return pick<T, kFirst, kStep>(a, b, std::make_integer_sequence<int, kLanes<T>>());
}

template <class T, int n = kLanes<T> / 2>
inline Vec<T> max_lanes(Vec<T> x) {  // in every lane
  x = vmax(x, pick<T, n, 1>(x, x));
  if constexpr (n > 1) x = max_lanes<T, n / 2>(x);
  return x;
}

template <class T, int n = kLanes<T> / 2>
inline Vec<T> sum_lanes(Vec<T> x) {  // in every lane
  x += pick<T, n, 1>(x, x);
  if constexpr (n > 1) x = sum_lanes<T, n / 2>(x);
  return x;
}

template <class T>
inline Vec<T> load_lanes(const T* from, int n, T fill = 0) {
  Vec<T> x = splat<T>(fill);
  std::memcpy(&x, from, n * sizeof(T));
  return x;
}

template <class T>
inline void store_lanes(T* to, Vec<T> x, int n) {
  std::memcpy(to, &x, n * sizeof(T));
}

template <class T>
inline void add_lane_sums(const Vec<T>* x, T* to) {  // to[h] += Σ of the lanes of x[h]
  constexpr int L = kLanes<T>;
  Vec<T> part[D];
#pragma GCC unroll 16
  for (int h = 0; h < D; ++h) part[h] = x[h];
#pragma GCC unroll 4
  for (int n = L / 2, left = D / 2; n; n /= 2, left /= 2)  // neighbouring lanes: afterwards lane h holds Σ x[h]
#pragma GCC unroll 8
    for (int h = 0; h < left; ++h)
      part[h] = pick<T, 0, 2>(part[2 * h], part[2 * h + 1]) + pick<T, 1, 2>(part[2 * h], part[2 * h + 1]);
#pragma GCC unroll 4
  for (int k = 0; k < D / L; ++k) {
    Vec<T> total;
    std::memcpy(&total, to + k * L, sizeof total);
    total += part[k];
    std::memcpy(to + k * L, &total, sizeof total);
  }
}

struct Seen {  // one place that sees a child, and the kernel's position under which it does
  int64_t place, kernel;
};

template <class T>
struct Problem {
  typedef Vec<T> V;
  static constexpr int L = kLanes<T>;

  int64_t B, C, H, W, Kh, Kw, J, sh, sw, n_iters, positions, start_types, last, n_threads;
  int64_t Ho, Wo, P, K, JV, most_seen;
  T damping, floor, eps, ratio, s_a, s_u, s_v;
  const double* lambda;
  const T *pose, *act, *beta_u, *beta_a, *offset;
  mutable Buffer<T> weight;  // [C·K, JV, 16] of lanes

  Problem(const int64_t* n, const double* x, const T* pose, const T* act, const T* w, const T* beta_u,
          const T* beta_a, const T* offset)
      : B(n[0]), C(n[1]), H(n[2]), W(n[3]), Kh(n[4]), Kw(n[5]), J(n[6]), sh(n[7]), sw(n[8]), n_iters(n[9]),
        positions(n[10]), start_types(n[11]), last(n[12]), n_threads(n[13]), Ho((H - Kh) / sh + 1),
        Wo((W - Kw) / sw + 1), P(Ho * Wo), K(Kh * Kw), JV((J + L - 1) / L),
        most_seen(((Kh + sh - 1) / sh) * ((Kw + sw - 1) / sw)), damping(T(x[0])), floor(T(x[1])), eps(T(x[2])),
        ratio(T(x[3])), s_a(T(x[4])), s_u(T(x[5])), s_v(T(x[6])), lambda(x + 7), pose(pose), act(act),
        beta_u(beta_u), beta_a(beta_a), offset(offset), weight(C * K * JV * D) {
    std::fill(weight.get(), weight.get() + C * K * JV * D, V{});
    for (int64_t i = 0; i < C * K; ++i)
      for (int64_t j = 0; j < J; ++j)
        for (int h = 0; h < D; ++h) weight[(i * JV + j / L) * D + h][j % L] = w[(i * J + j) * D + h];
  }

  const V* weights() const { return weight.get(); }

  // log sigmoid(logit) − ½ Σ log 2πσ², the sum being given. Lanes beyond the n types take no part in the softmax
  // over all parents; in one of their own they may.
  V log_ap(V logit, V normal, int n) const {
    V c = splat<T>(positions ? T(0) : -std::numeric_limits<T>::infinity());
    for (int l = 0; l < n; ++l) {
      const T x = logit[l];
      c[l] = (x < 0 ? x : T(0)) - std::log1p(std::exp(x < 0 ? x : -x)) - T(0.5) * normal[l];
    }
    return c;
  }

  int width(int64_t jv) const { return int(std::min<int64_t>(L, J - jv * L)); }

  int64_t child(int64_t b, int64_t c, int64_t y, int64_t x) const { return ((b * C + c) * H + y) * W + x; }

  template <class Number>
  Number* of_coupling(Number* coupling, int64_t b, int64_t place, int64_t row) const {
    return coupling + ((b * P + place) * C * K + row) * J;
  }

  int64_t seen_child(int64_t row, int64_t p) const {  // of an image: the one at a row of weights that place p sees
    const int64_t k = row % K;
    return child(0, row / K, p / Wo * sh + k / Kw, p % Wo * sw + k % Kw);
  }

  int seen_by(int64_t y, int64_t x, Seen* seen) const {
    int n = 0;
    const int64_t top = y < Kh ? 0 : (y - Kh) / sh + 1, left = x < Kw ? 0 : (x - Kw) / sw + 1;
    for (int64_t py = top; py <= std::min(y / sh, Ho - 1); ++py)
      for (int64_t px = left; px <= std::min(x / sw, Wo - 1); ++px)
        seen[n++] = {py * Wo + px, (y - py * sh) * Kw + (x - px * sw)};
    return n;
  }

  int64_t groups() const { return positions ? JV : 1; }  // vectors of parents that a child is shared among, apart

  // Children taken together: a parent's state comes from L2 once for all of them.
  int64_t block() const { return std::min<int64_t>(16, std::max<int64_t>(4, 64 / (most_seen * JV))); }

  T start(int n_seen) const { return T(1) / T(J * (start_types ? 1 : n_seen)); }  // R of the first M-step
};

// ---------------------------------------------------------------------------------------------- forward

template <class V>
struct Parent {  // L parents of one place
  V mu[D], w[D];           // the state that the E-step sees: mean, 1/σ²
  V s1[D], s2[D];          // Σ r (V − μ), Σ r (V − μ)²
  V t1[D], t2[D], t0;      // the same, of the runs put aside
  V s0, c;                 // Σ r; log a − ½ Σ log 2πσ²
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
        for (int h = 0; h < D; ++h) {
          parent.t2[h] = parent.s1[h] / parent.s0;
          parent.t1[h] = parent.mu[h];
          parent.s2[h] = parent.s2[h] / parent.s0 + this->floor;
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
  void finish(int64_t b, int64_t t, Parent<V>* parents) const {
    const T lambda = T(this->lambda[t]);
    const bool last = t == this->n_iters - 1;
    for (int64_t p = 0; p < this->P; ++p)
      for (int64_t jv = 0; jv < this->JV; ++jv) {
        Parent<V>& parent = parents[p * this->JV + jv];
        const int n = this->width(jv);
        V logs = {}, normal = {};
        for (int h = 0; h < D; ++h) {
          const V one = vlog(parent.s2[h]);
          logs += one;
          normal += one + T(kLog2Pi);
        }
        const V beta_u = load_lanes<T>(this->beta_u + jv * L, n), beta_a = load_lanes<T>(this->beta_a + jv * L, n);
        const V cost = parent.s0 * this->ratio * (this->s_u * D * beta_u + this->s_v * T(0.5) * logs);
        const V logit = lambda * (this->s_a * beta_a - cost);
        if (saved) {
          T* to = saved + ((b * this->P + p) * this->n_iters + t) * kState * this->J + jv * L;
          for (int h = 0; h < D; ++h) {
            store_lanes<T>(to + h * this->J, parent.t1[h], n);
            store_lanes<T>(to + (kLeft + h) * this->J, parent.t2[h], n);
            store_lanes<T>(to + (kVariance + h) * this->J, parent.s2[h], n);
          }
          store_lanes<T>(to + kLogit * this->J, logit, n);
          store_lanes<T>(to + kMass * this->J, parent.s0, n);
        }
        if (last)
          for (int l = 0; l < n; ++l) {
            const int64_t at = (b * this->J + jv * L + l) * this->P + p;
            for (int h = 0; h < D; ++h) out_pose[at * D + h] = parent.mu[h][l];
            out_act[at] = logit[l] >= 0 ? 1 / (1 + std::exp(-logit[l])) : std::exp(logit[l]) / (1 + std::exp(logit[l]));
          }
        else
          ready(parent, this->log_ap(logit, normal, n));
      }
  }

  // c and 1/σ², from σ² in s2; sums at 0.
  static void ready(Parent<V>& parent, V c) {
    parent.c = c;
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
    for (int64_t b = from; b < to; ++b) {
      first<kOffset>(b, parents, weighted);
      finish(b, 0, parents);
      for (int64_t t = 1; t < this->n_iters; ++t) {
        sums<kOffset>(b, parents, greatest, inverse, t == this->n_iters - 1 ? coupling : nullptr);
        estimate<kOffset>(b, parents, greatest, inverse);
        finish(b, t, parents);
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

// ---------------------------------------------------------------------------------------------- backward

template <class V>
struct Slope {  // L parents of one place, on the way back through one iteration
  V mu[D], w[D], moved[D];     // what the E-step saw, and how far the M-step moved the mean
  V g1[D], g2[D], twice[D];    // dr = k + Σ d (g1 + g2 d), dV = r (g1 + 2 g2 d), with d = V − μ
  V s1[D], s2[D];              // Σ x (V − μ), Σ x (V − μ)², x the gradient of the E-step's logits
  V dmu[D], dvar[D];           // the gradients that come from the iterations after
  V s0, c, k, dlogit;
};

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
struct Backward : Problem<T> {
  typedef Vec<T> V;
  using Base = Problem<T>;
  using Base::L;
  const T *saved, *grad_pose, *grad_act, *d_coupling;
  T *d_pose, *d_act;

  using Base::Base;

  const T* state(int64_t b, int64_t t, int64_t p, int64_t jv) const {
    return saved + ((b * this->P + p) * this->n_iters + t) * kState * this->J + jv * L;
  }

  // From the gradients of μ, σ² and logit of iteration t to what a visit of the children needs.
  void prepare(int64_t b, int64_t t, Slope<V>* slopes, double* d_beta) const {
    const T lambda = T(this->lambda[t]), scale = lambda * this->ratio, keep = 1 - this->damping;
    const int64_t J = this->J;
    for (int64_t jv = 0; jv < this->JV; ++jv) {
      const int n = this->width(jv);
      const V beta_u = load_lanes<T>(this->beta_u + jv * L, n);
      V sum_u = {}, sum_a = {};
      for (int64_t p = 0; p < this->P; ++p) {
        Slope<V>& s = slopes[p * this->JV + jv];
        const T* now = state(b, t, p, jv);
        const V mass = load_lanes<T>(now + kMass * J, n, 1), inv = T(1) / mass;
        V logs = {};
        for (int h = 0; h < D; ++h) logs += vlog(load_lanes<T>(now + (kVariance + h) * J, n, 1));
        sum_a += s.dlogit;
        sum_u += s.dlogit * mass;
        V k = -scale * (this->s_u * D * beta_u + this->s_v * T(0.5) * logs) * s.dlogit;
        const V per_log = -scale * this->s_v * T(0.5) * mass * s.dlogit;
        const T* before = t ? state(b, t - 1, p, jv) : nullptr;
        for (int h = 0; h < D; ++h) {
          const V moved = load_lanes<T>(now + h * J, n), var = load_lanes<T>(now + (kVariance + h) * J, n, 1);
          V mu = {};  // by the same sums as in the forward pass
          for (int64_t i = 0; i < t; ++i) mu += load_lanes<T>(state(b, i, p, jv) + h * J, n);
          s.mu[h] = before ? mu : moved;
          mu += moved;
          const V left = load_lanes<T>(now + (kLeft + h) * J, n), apart = left - this->eps * mu * inv;  // mean − μ
          const V dvar = s.dvar[h] + per_log / var, g2 = dvar * inv;
          const V dmu = s.dmu[h] - T(2) * g2 * mass * left;
          const V g1 = keep * dmu * inv;
          k -= g2 * (var - this->floor) + g1 * apart;
          s.dmu[h] = this->damping * dmu;
          s.g1[h] = g1, s.g2[h] = g2, s.twice[h] = g2 + g2;
          s.moved[h] = moved;
          s.s1[h] = s.s2[h] = V{};
        }
        s.k = k;
        s.s0 = V{};
        if (!before) continue;
        V normal = {};
        for (int h = 0; h < D; ++h) {
          const V var = load_lanes<T>(before + (kVariance + h) * J, n, 1);
          normal += vlog(var) + T(kLog2Pi);
          s.w[h] = T(1) / var;
        }
        s.c = this->log_ap(load_lanes<T>(before + kLogit * J, n), normal, n);
      }
      for (int l = 0; l < n; ++l) {
        d_beta[jv * L + l] -= double(scale) * this->s_u * D * sum_u[l];
        d_beta[J + jv * L + l] += double(lambda) * this->s_a * sum_a[l];
      }
    }
  }

  // The gradients of the states that the E-step before iteration t saw.
  void through(int64_t b, int64_t t, Slope<V>* slopes) const {
    for (int64_t p = 0; p < this->P; ++p)
      for (int64_t jv = 0; jv < this->JV; ++jv) {
        Slope<V>& s = slopes[p * this->JV + jv];
        const V logit = load_lanes<T>(state(b, t - 1, p, jv) + kLogit * this->J, this->width(jv));
        for (int l = 0; l < L; ++l)
          s.dlogit[l] = s.s0[l] * (logit[l] >= 0 ? std::exp(-logit[l]) / (1 + std::exp(-logit[l])) : 1 / (1 + std::exp(logit[l])));
        for (int h = 0; h < D; ++h) {
          s.dmu[h] += s.s1[h] * s.w[h];
          s.dvar[h] = T(0.5) * s.w[h] * (s.s2[h] * s.w[h] - s.s0);
        }
      }
  }

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
                    q4[q] = ra * (u + slope.g2[h] * v[q]);
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
        const V logit = load_lanes<T>(state(b, final, p, jv) + kLogit * this->J, this->width(jv));
        for (int l = 0; l < this->width(jv); ++l) {
          const int64_t at = (b * this->J + jv * L + l) * this->P + p;
          for (int h = 0; h < D; ++h) s.dmu[h][l] = grad_pose[at * D + h];
          const T small = std::exp(-std::abs(logit[l]));
          s.dlogit[l] = grad_act[at] * small / ((1 + small) * (1 + small));
        }
      }
    for (int64_t t = final; t >= 0; --t) {
      prepare(b, t, slopes, d_beta);
      if (t == 0) {
        first<kOffset>(b, slopes, d_weight);
      } else if (this->last) {
        later<true, kOffset>(b, t, slopes, d_weight);
        return;
      } else {
        later<false, kOffset>(b, t, slopes, d_weight);
        through(b, t, slopes);
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
      const bool good = parallel(n, n, [&](int64_t i) {
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

template <class T>
int32_t forward(const int64_t* n, const double* x, const T* pose, const T* act, const T* weight, const T* beta_u,
                const T* beta_a, const T* offset, T* out_pose, T* out_act, T* saved, T* coupling) {
  try {
    Forward<T> op(n, x, pose, act, weight, beta_u, beta_a, offset);
    op.out_pose = out_pose, op.out_act = out_act, op.saved = saved, op.coupling = coupling;
    return op.run() ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

template <class T>
int32_t backward(const int64_t* n, const double* x, const T* pose, const T* act, const T* weight, const T* beta_u,
                 const T* beta_a, const T* offset, const T* saved, const T* grad_pose, const T* grad_act,
                 const T* d_coupling, T* d_pose, T* d_act, T* d_weight, T* d_beta_u, T* d_beta_a) {
  try {
    Backward<T> op(n, x, pose, act, weight, beta_u, beta_a, offset);
    op.saved = saved, op.grad_pose = grad_pose, op.grad_act = grad_act, op.d_coupling = d_coupling;
    op.d_pose = d_pose, op.d_act = d_act;
    return op.run(d_weight, d_beta_u, d_beta_a) ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace

// n: B, T, H, W, K_h, K_w, J, stride rows and columns, n_iters, compete over positions, start over types,
//    gradient of the last iteration only, threads.
// x: damping, variance floor, mass floor, ratio, scales of β_a, β_u and Σ log σ, then λ of every iteration.
// pose [B, T, H, W, 16], act [B, T, H, W], weight [T, K_h, K_w, J, 16], offset [T, K_h, K_w, 16] or null;
// out_pose [B, J, H', W', 16], out_act [B, J, H', W']; saved [B, H', W', n_iters, 50, J] or null;
// coupling and its gradient [B, H', W', T·K_h·K_w, J] or null. All contiguous. Returns 0, or 1 where memory ran out.
#define TORCHCAPS_EXPORT extern "C" __attribute__((visibility("default")))
#define TORCHCAPS_EM(T, suffix)                                                                                     \
  TORCHCAPS_EXPORT int32_t forward_##suffix(const int64_t* n, const double* x, const T* pose, const T* act,         \
                                            const T* weight, const T* beta_u, const T* beta_a, const T* offset,     \
                                            T* out_pose, T* out_act, T* saved, T* coupling) {                       \
    return forward<T>(n, x, pose, act, weight, beta_u, beta_a, offset, out_pose, out_act, saved, coupling);         \
  }                                                                                                                 \
  TORCHCAPS_EXPORT int32_t backward_##suffix(const int64_t* n, const double* x, const T* pose, const T* act,        \
                                             const T* weight, const T* beta_u, const T* beta_a, const T* offset,    \
                                             const T* saved, const T* grad_pose, const T* grad_act,                 \
                                             const T* d_coupling, T* d_pose, T* d_act, T* d_weight, T* d_beta_u,    \
                                             T* d_beta_a) {                                                         \
    return backward<T>(n, x, pose, act, weight, beta_u, beta_a, offset, saved, grad_pose, grad_act, d_coupling,     \
                       d_pose, d_act, d_weight, d_beta_u, d_beta_a);                                                \
  }
TORCHCAPS_EM(float, f32)
TORCHCAPS_EM(double, f64)
