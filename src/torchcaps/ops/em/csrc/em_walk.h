// In which order children are visited, and which of them together.
#pragma once

#include "em_problem.h"

namespace torchcaps {
namespace {

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
      : problem_(problem), most_(std::min<int64_t>(16, std::max<int64_t>(4, 64 / (problem.most_seen * problem.JV)))) {}

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
