// Sizes and settings of an EM routing, and which parents see which child.
#pragma once

#include <algorithm>
#include <vector>

#include "em_lanes.h"

namespace torchcaps {
namespace {

// What is kept of a parent for the backward pass: of each iteration how far μ moved, σ², logit and mass; behind them what
// Σ r (V − μ) / mass is left by damping and by rounding in the first one, where μ moves all the way from 0. (Rounding of
// it may be much beside a small σ. Were it not known, the gradient of the votes would not be that of the numbers which
// were computed.)
constexpr int kVariance = D, kLogit = 2 * D, kMass = 2 * D + 1, kState = 2 * D + 2;
constexpr int64_t kRun = 256;  // types of children summed before the sum is put aside, so that long sums stay exact

struct Seen {  // one place that sees a child, and the kernel's position under which it does
  int64_t place, kernel;
};

template <class T, class Pose>
struct Problem {
  typedef Vec<T> V;
  static constexpr int L = kLanes<T>;

  int64_t B, C, H, W, Kh, Kw, J, sh, sw, n_iters, positions, start_types, last, n_threads;
  int64_t Ho, Wo, P, K, JV, most_seen;
  T damping, floor, eps;
  double ratio, s_a, s_u, s_v;
  const double* lambda;
  const T *pose, *act, *beta_u, *beta_a, *offset;
  mutable Buffer<T> weight;  // [C·K, JV, Pose::kNumbers] of lanes
  std::vector<int64_t> of_row, of_place;  // the first place's child at each row, and how far off others' are
  const typename Pose::template Walk<Problem> walk;

  Problem(const int64_t* n, const double* x, const T* pose, const T* act, const T* w, const T* beta_u,
          const T* beta_a, const T* offset)
      : B(n[0]), C(n[1]), H(n[2]), W(n[3]), Kh(n[4]), Kw(n[5]), J(n[6]), sh(n[7]), sw(n[8]), n_iters(n[9]),
        positions(n[10]), start_types(n[11]), last(n[12]), n_threads(n[13]), Ho((H - Kh) / sh + 1),
        Wo((W - Kw) / sw + 1), P(Ho * Wo), K(Kh * Kw), JV((J + L - 1) / L),
        most_seen(((Kh + sh - 1) / sh) * ((Kw + sw - 1) / sw)), damping(T(x[0])), floor(T(x[1])), eps(T(x[2])),
        ratio(x[3]), s_a(x[4]), s_u(x[5]), s_v(x[6]), lambda(x + 7), pose(pose), act(act),
        beta_u(beta_u), beta_a(beta_a), offset(offset), weight(n_weights()), of_row(C * K), of_place(P), walk(*this) {
    for (int64_t i = 0; i < C * K; ++i) of_row[i] = child(0, i / K, i % K / Kw, i % K % Kw);
    for (int64_t p = 0; p < P; ++p) of_place[p] = child(0, 0, p / Wo * sh, p % Wo * sw);
    for (int64_t i = 0; i < C * K; ++i)
      for (int64_t jv = 0; jv < JV; ++jv)
        to_lanes(w + (i * J + jv * L) * Pose::kNumbers, Pose::kNumbers, width(jv), Pose::kNumbers, weight + at(i, jv));
  }

  int64_t n_weights() const { return C * K * JV * Pose::kNumbers; }

  // Where the transformations to L types of parents begin. A row of weights: a type of child at a kernel's position.
  int64_t at(int64_t row, int64_t jv) const { return (row * JV + jv) * Pose::kNumbers; }

  const V* weights(int64_t row, int64_t jv) const { return weight.get() + at(row, jv); }

  // The constants of the logits, from log sigmoid(logit) − ½ Σ log σ² of each parent. What is the same for all
  // changes no share: without the greatest, less is lost to rounding; of each place where none sees another's
  // children. Lanes beyond the types hold −∞. They take no part in the softmax over all parents; in one of their own
  // they may.
  template <class Record>
  void level(const std::vector<double>& log_ap, Record* records) const {
    const double none = -std::numeric_limits<double>::infinity();
    const int64_t together = (K == 1 ? 1 : P) * JV * L;
    for (int64_t from = 0; from < P * JV * L; from += together) {
      const double top = *std::max_element(log_ap.begin() + from, log_ap.begin() + from + together);
      for (int64_t i = from; i < from + together; ++i) {
        const double x = log_ap[i];
        records[i / L].c[i % L] = x == none && positions ? T(0) : T(x - top);
      }
    }
  }

  // β_u and Σ log σ² make the cost of describing one vote.
  double cost(int64_t j, double logs) const { return ratio * (s_u * D * double(beta_u[j]) + s_v * 0.5 * logs); }

  int64_t kept() const { return n_iters * kState + D; }  // of a parent

  int width(int64_t jv) const { return int(std::min<int64_t>(L, J - jv * L)); }

  int64_t n_lower() const { return C * H * W; }  // children of an image

  int64_t child(int64_t b, int64_t c, int64_t y, int64_t x) const { return ((b * C + c) * H + y) * W + x; }

  template <class Number>
  Number* of_coupling(Number* coupling, int64_t b, int64_t place, int64_t row) const {
    return coupling + ((b * P + place) * C * K + row) * J;
  }

  // Of an image: the one at a row of weights that place p sees. It is asked for at every vote, where divisions are slow.
  int64_t seen_child(int64_t row, int64_t p) const { return of_row[row] + of_place[p]; }

  int seen_by(int64_t y, int64_t x, Seen* seen) const {
    int n = 0;
    const int64_t top = y < Kh ? 0 : (y - Kh) / sh + 1, left = x < Kw ? 0 : (x - Kw) / sw + 1;
    for (int64_t py = top; py <= std::min(y / sh, Ho - 1); ++py)
      for (int64_t px = left; px <= std::min(x / sw, Wo - 1); ++px)
        seen[n++] = {py * Wo + px, (y - py * sh) * Kw + (x - px * sw)};
    return n;
  }

  int64_t groups() const { return positions ? JV : 1; }  // vectors of parents that a child is shared among, apart

  T start(int n_seen) const { return T(1) / T(J * (start_types ? 1 : n_seen)); }  // R of the first M-step
};

}  // namespace
}  // namespace torchcaps
