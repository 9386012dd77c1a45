// Calls the weights by agreement on odd sizes with exactly as much memory as they may touch.
#include <cstdio>
#include <vector>

#include "agreement.cpp"
#include "numbers.h"

template <class T, class Agree>
bool run(const int64_t (&s)[4], bool over_lower, bool prior, int64_t threads, Agree agree) {
  const int64_t I = s[0], J = s[1], E = s[2], B = 16 * s[3];
  auto votes = numbers<T>(I * J * E * B), shift = numbers<T>(I * J), shares = numbers<T>(I * J * B), sums = numbers<T>(J * E * B);
  auto d_shares = numbers<T>(I * J * B);
  const auto call = [&](T* slopes) {
    return agree(I, J, E, B, over_lower, 1e-3, threads, votes.data(), prior ? shift.data() : nullptr, shares.data(),
                 sums.data(), slopes);
  };
  const int32_t failed = call(nullptr) | call(d_shares.data());
  for (const auto& each : {votes, shares, sums, d_shares}) {
    for (T number : each) {
      if (!(number == number)) return false;
    }
  }
  return !failed;
}

int main() {
  const int64_t sizes[][4] = {{1, 1, 1, 1}, {7, 3, 5, 2}, {2, 11, 16, 1}, {30, 1, 3, 3}};
  for (const auto& s : sizes) {
    for (int kind = 0; kind < 4; ++kind) {
      for (int64_t threads = 1; threads < 4; ++threads) {
        if (!run<float>(s, kind & 1, kind & 2, threads, agreement_f32)) return 1;
        if (!run<double>(s, kind & 1, kind & 2, threads, agreement_f64)) return 1;
      }
    }
  }
  std::puts("clean");
}
