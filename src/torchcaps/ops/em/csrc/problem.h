// An EM routing: its sizes and settings, which parents see which child, and in which order children are visited.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "simd.h"

namespace torchcaps {
namespace {

constexpr int D = 16;  // numbers in a pose

// The integers of a call; em/cpu.py hands over the same structure.
struct Sizes {
  int64_t B, C, H, W;  // images; types, rows and columns of the children's map
  int64_t Kh, Kw, J;  // the kernel, and types of parents
  int64_t sh, sw;  // stride of rows and of columns
  int64_t n_iters, n_threads;
  int64_t compete_positions;  // whether R is shared among the places of each type, instead of among all parents
  int64_t start_types;  // whether R starts at 1 over the number of types, instead of 1 over that of parents
  int64_t last_only;  // whether the gradient is that of the last iteration only
};

// The real numbers of a call, likewise.
struct Settings {
  double damping, variance_floor, mass_floor, ratio, scale_a, scale_u, scale_variance;
};

// What is kept of a parent for the backward pass: of each iteration how far μ moved, σ², logit and mass. After these,
// the residual of the first mean, Σ r (V − μ) / mass, which damping and rounding leave. (The first μ moves all the way
// from 0, and its rounding may be large beside a small σ.) Backward needs it to differentiate the numbers that were
// computed.
constexpr int kVariance = D, kLogit = 2 * D, kMass = 2 * D + 1, kState = 2 * D + 2;
constexpr int64_t kRun = 256;  // types of children in a partial sum, so that long sums stay exact

struct Seen {  // one place that sees a child, and the kernel's position under which it does
  int64_t place, kernel;
};

template <class T, class Pose>
struct Problem : Sizes {
  typedef Vec<T> V;
  static constexpr int L = kLanes<T>;

  int64_t Ho, Wo, P, K, JV, most_seen;
  T damping, floor, eps;  // eps: the floor of masses
  double ratio, scale_a, scale_u, scale_variance;
  const double* lambda;  // of every iteration
  const T *pose, *act, *beta_u, *beta_a, *offset;
  mutable Buffer<T> weight;  // [C·K, JV, Pose::kNumbers] of lanes
  std::vector<int64_t> of_row, of_place;  // the first place's child at each row, and how far off others' are
  const typename Pose::template Walk<Problem> walk;

  Problem(const Sizes& sizes, const Settings& settings, const double* lambda, const T* pose, const T* act, const T* w,
          const T* beta_u, const T* beta_a, const T* offset)
      : Sizes(sizes), Ho((H - Kh) / sh + 1), Wo((W - Kw) / sw + 1), P(Ho * Wo), K(Kh * Kw), JV((J + L - 1) / L),
        most_seen(((Kh + sh - 1) / sh) * ((Kw + sw - 1) / sw)), damping(T(settings.damping)),
        floor(T(settings.variance_floor)), eps(T(settings.mass_floor)), ratio(settings.ratio),
        scale_a(settings.scale_a), scale_u(settings.scale_u), scale_variance(settings.scale_variance), lambda(lambda),
        pose(pose), act(act), beta_u(beta_u), beta_a(beta_a), offset(offset), weight(n_weights()), of_row(C * K),
        of_place(P), walk(*this) {
    for (int64_t i = 0; i < C * K; ++i) of_row[i] = child(0, i / K, i % K / Kw, i % K % Kw);
    for (int64_t p = 0; p < P; ++p) of_place[p] = child(0, 0, p / Wo * sh, p % Wo * sw);
    for (int64_t i = 0; i < C * K; ++i)
      for (int64_t jv = 0; jv < JV; ++jv)
        to_lanes(w + (i * J + jv * L) * Pose::kNumbers, Pose::kNumbers, width(jv), Pose::kNumbers, weight + at(i, jv));
  }

  Problem(const Problem&) = delete;  // walk holds its address
  Problem& operator=(const Problem&) = delete;

  int64_t n_weights() const { return C * K * JV * Pose::kNumbers; }

  // Where the transformations to L types of parents begin. A row of weights: a type of child at a kernel's position.
  int64_t at(int64_t row, int64_t jv) const { return (row * JV + jv) * Pose::kNumbers; }

  const V* weights(int64_t row, int64_t jv) const { return weight.get() + at(row, jv); }

  // The constants of the logits, from log sigmoid(logit) − ½ Σ log σ² of each parent, less the maximum. The softmax
  // does not change, and rounding loses less. The maximum is taken over all places, or over each where the kernel is
  // 1×1 and no two places share a child. Lanes beyond the types hold −∞: they take no part in the softmax over all
  // parents, and may in one over positions, which is their own.
  template <class Record>
  void subtract_max(const std::vector<double>& log_ap, Record* records) const {
    const double none = -std::numeric_limits<double>::infinity();
    const int64_t together = (K == 1 ? 1 : P) * JV * L;
    for (int64_t from = 0; from < P * JV * L; from += together) {
      const double top = *std::max_element(log_ap.begin() + from, log_ap.begin() + from + together);
      for (int64_t i = from; i < from + together; ++i) {
        const double x = log_ap[i];
        records[i / L].c[i % L] = x == none && compete_positions ? T(0) : T(x - top);
      }
    }
  }

  // β_u and Σ log σ² make the cost of describing one vote.
  double cost(int64_t j, double logs) const {
    return ratio * (scale_u * D * double(beta_u[j]) + scale_variance * 0.5 * logs);
  }

  int64_t kept() const { return n_iters * kState + D; }  // of a parent

  int width(int64_t jv) const { return int(std::min<int64_t>(L, J - jv * L)); }

  int64_t n_lower() const { return C * H * W; }  // children of an image

  int64_t child(int64_t b, int64_t c, int64_t y, int64_t x) const { return ((b * C + c) * H + y) * W + x; }

  template <class Number>
  Number* of_coupling(Number* coupling, int64_t b, int64_t place, int64_t row) const {
    return coupling + ((b * P + place) * C * K + row) * J;
  }

  // The child of an image at a row of weights that place p sees. Every vote asks for it, and divisions are slow.
  int64_t seen_child(int64_t row, int64_t p) const { return of_row[row] + of_place[p]; }

  int seen_by(int64_t y, int64_t x, Seen* seen) const {
    int n = 0;
    const int64_t top = y < Kh ? 0 : (y - Kh) / sh + 1, left = x < Kw ? 0 : (x - Kw) / sw + 1;
    for (int64_t py = top; py <= std::min(y / sh, Ho - 1); ++py)
      for (int64_t px = left; px <= std::min(x / sw, Wo - 1); ++px)
        seen[n++] = {py * Wo + px, (y - py * sh) * Kw + (x - px * sw)};
    return n;
  }

  // Vectors of parents that are visited together, as a child is shared among them.
  int64_t part() const { return compete_positions ? 1 : JV; }

  T start(int n_seen) const { return T(1) / T(J * (start_types ? 1 : n_seen)); }  // R of the first M-step
};

// ---- the order of visits ----

// A child and a place that sees it.
struct Visit {
  int32_t i, slot;            // the child's number in its block; which of the block's votes this is
  int32_t child, place, row;  // of the image, and of the weights; child and row from those of the block's first type on
};

// Children that are visited together. Those of a run of visits have in common what would come from far away each time.
struct Block {
  struct Child {
    int32_t child, slot, n_seen;  // likewise; its votes' slots are slot … slot + n_seen − 1
  };
  std::vector<Child> children;
  std::vector<std::vector<Visit>> runs;
  std::vector<std::vector<Visit>> of_places;  // the same visits by their places, where runs are not

  explicit Block(int64_t n_runs) : runs(n_runs) {}

  int64_t n() const { return int64_t(children.size()); }

  // What is summed over children is summed over these first: so there are fewer and longer sums, and less is lost.
  const std::vector<std::vector<Visit>>& by_place() const { return of_places.empty() ? runs : of_places; }

  void clear() {
    children.clear();
    for (auto& run : runs) run.clear();
  }
};

// Children of several types at one position. A run is seen by one place, whose state comes from L2 once for all.
template <class P>
class ByType {
 public:
  explicit ByType(const P& problem)
      : problem_(problem), most_(std::min<int64_t>(16, std::max<int64_t>(4, kVotes / (problem.most_seen * problem.part())))) {}

  int64_t n_children() const { return most_; }
  int64_t n_slots() const { return most_ * problem_.most_seen; }

  // Calls body(block, first type) for all blocks of the types from … to − 1.
  template <class Body>
  void operator()(int64_t from, int64_t to, const Body& body) const {
    std::vector<Seen> seen(problem_.most_seen);
    Block block(problem_.most_seen);
    for (int64_t y = 0; y < problem_.H; ++y)
      for (int64_t x = 0; x < problem_.W; ++x) {
        const int n_seen = problem_.seen_by(y, x, seen.data());
        if (!n_seen) continue;
        for (int64_t c = from; c < to; c += most_) {
          const int64_t n = std::min(most_, to - c);
          if (c == from || n < most_) fill(block, n, y, x, n_seen, seen.data());
          body(block, c);
        }
      }
  }

 private:
  void fill(Block& block, int64_t n, int64_t y, int64_t x, int n_seen, const Seen* seen) const {
    block.clear();
    for (int64_t i = 0; i < n; ++i) {
      const int32_t child = int32_t(problem_.child(0, i, y, x)), slot = int32_t(i * n_seen);
      block.children.push_back({child, slot, n_seen});
      for (int s = 0; s < n_seen; ++s)
        block.runs[s].push_back(
            {int32_t(i), slot + s, child, int32_t(seen[s].place), int32_t(i * problem_.K + seen[s].kernel)});
    }
  }

  static constexpr int64_t kVotes = 144;  // vectors of them in a block, so that they stay close

  const P& problem_;
  const int64_t most_;
};

// Children of one type at several positions. A run has one row of weights, which stays close for all of them.
template <class P>
class ByPosition {
 public:
  explicit ByPosition(const P& problem)
      : most_(std::max(problem.most_seen, std::min(kVotes / problem.JV, problem.P * problem.K))) {
    std::vector<Seen> seen(problem.most_seen);
    std::vector<size_t> list(problem.P);  // of which of_places it is
    int64_t slots = most_;
    for (int64_t y = 0; y < problem.H; ++y)
      for (int64_t x = 0; x < problem.W; ++x) {
        const int n_seen = problem.seen_by(y, x, seen.data());
        if (!n_seen) continue;
        if (slots + n_seen > most_) {
          blocks_.emplace_back(problem.K);
          slots = 0;
          std::fill(list.begin(), list.end(), kNone);
        }
        Block& block = blocks_.back();
        const int32_t child = int32_t(problem.child(0, 0, y, x)), i = int32_t(block.n()), slot = int32_t(slots);
        block.children.push_back({child, slot, n_seen});
        for (int s = 0; s < n_seen; ++s) {
          const Visit visit = {i, slot + s, child, int32_t(seen[s].place), int32_t(seen[s].kernel)};
          if (list[visit.place] == kNone) {
            list[visit.place] = block.of_places.size();
            block.of_places.emplace_back();
          }
          block.of_places[list[visit.place]].push_back(visit);
          block.runs[visit.row].push_back(visit);
        }
        slots += n_seen;
      }
  }

  int64_t n_children() const { return most_; }
  int64_t n_slots() const { return most_; }

  template <class Body>
  void operator()(int64_t from, int64_t to, const Body& body) const {
    for (int64_t c = from; c < to; ++c)
      for (const Block& block : blocks_) body(block, c);
  }

 private:
  static constexpr int64_t kVotes = 256;  // vectors of them in a block, so that they stay in L2
  static constexpr size_t kNone = ~size_t(0);

  const int64_t most_;
  std::vector<Block> blocks_;
};

}  // namespace
}  // namespace torchcaps
