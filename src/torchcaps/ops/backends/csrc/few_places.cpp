// A convolution of few places, which reads the weight once, as it lies; ops/few_places.py calls it.
//
// A tile of places and outgoing channels is accumulated in registers, for one tap of the kernel after the other. While a
// stretch of the weight is multiplied, the next one is fetched: for one image memory takes as long as arithmetic.
#include <algorithm>

#include "parallel.h"
#include "simd.h"

namespace torchcaps {
namespace {

constexpr int kRows = 6;                            // places of a tile
constexpr int kColumns = kRegisters == 32 ? 4 : 2;  // vectors of outgoing channels of a tile
constexpr int64_t kDepth = 128;                     // incoming channels of a stretch: a panel of its weight stays in L1
constexpr int64_t kLine = 64;                       // bytes that are fetched together

template <class T>
struct Convolution {
  static constexpr int L = kLanes<T>;
  int64_t B, H, W, C, N, kernel_h, kernel_w, stride, out_h, out_w, threads;
  const T *x, *weight, *bias;  // [B, H, W, C], [kernel_h, kernel_w, C, N], [N] or null
  T* y;                        // [B, out_h, out_w, N]
  int64_t places() const { return B * out_h * out_w; }
  int64_t taps() const { return kernel_h * kernel_w; }
  int64_t panels() const { return (N / L + kColumns - 1) / kColumns; }
  int64_t vector_of(int64_t panel) const { return panel * (N / L) / panels(); }  // with which it begins
  // Where the window of a place begins.
  const T* window(int64_t place) const {
    const int64_t image = place / (out_h * out_w), row = place / out_w % out_h, column = place % out_w;
    return x + ((image * H + row * stride) * W + column * stride) * C;
  }
};

// y += Σ x w over some channels, of R places and V vectors; each channel fetches a line of what comes next.
template <class T, int R, int V>
void multiply(const T* const* x, const T* w, int64_t N, int64_t depth, T* y, const char* next, const char* end) {
  Vec<T> acc[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[r][v] = splat<T>(0);
  }
  for (int64_t c = 0; c < depth; ++c, w += N, next += kLine) {
    if (next < end) __builtin_prefetch(next, 0, 2);
    Vec<T> b[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) b[v] = load(w + v * kLanes<T>);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec<T> a = splat(x[r][c]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[r][v] += a * b[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      T* to = y + r * N + v * kLanes<T>;
      store(to, load(to) + acc[r][v]);
    }
  }
}

// Channels [c, c + depth) of one tap, for the panels [from, to).
template <class T>
void stretch(const Convolution<T>& p, int64_t tap, int64_t c, int64_t depth, int64_t from, int64_t to) {
  const int64_t before = (tap / p.kernel_w * p.W + tap % p.kernel_w) * p.C + c;
  const T *w = p.weight + (tap * p.C + c) * p.N, *behind = p.weight + p.taps() * p.C * p.N;
  const char* next = reinterpret_cast<const char*>(w + depth * p.N);
  const char* end = reinterpret_cast<const char*>(std::min(w + (depth + kDepth) * p.N, behind));
  for (int64_t panel = from; panel < to; ++panel) {
    const int64_t n = p.vector_of(panel) * p.L;
    stretches<kColumns>(p.vector_of(panel + 1) - p.vector_of(panel), [&](auto columns, int64_t) {
      stretches<kRows>(p.places(), [&](auto rows, int64_t place) {
        constexpr int R = decltype(rows)::value;
        const T* x[R];
        for (int r = 0; r < R; ++r) x[r] = p.window(place + r) + before;
        multiply<T, R, decltype(columns)::value>(x, w + n, p.N, depth, p.y + place * p.N + n, next, end);
        next += depth * kLine;
      });
    });
  }
}

// Threads share the outgoing channels: their number changes no sum.
template <class T>
bool convolve(const Convolution<T>& p) {
  const int64_t teams = std::max<int64_t>(1, std::min(p.threads, p.panels()));
  return parallel(teams, p.threads, [&](int64_t team) {
    const int64_t from = team * p.panels() / teams, to = (team + 1) * p.panels() / teams;
    for (int64_t place = 0; place < p.places(); ++place) {
      for (int64_t n = p.vector_of(from) * p.L; n < p.vector_of(to) * p.L; ++n) {
        p.y[place * p.N + n] = p.bias ? p.bias[n] : T(0);
      }
    }
    for (int64_t tap = 0; tap < p.taps(); ++tap) {
      for (int64_t c = 0; c < p.C; c += kDepth) stretch(p, tap, c, std::min(kDepth, p.C - c), from, to);
    }
  });
}

}  // namespace
}  // namespace torchcaps

// How many channels a vector has: that of the outgoing ones has to be a multiple of it.
TORCHCAPS_EXPORT int32_t lanes_f32() { return torchcaps::kLanes<float>; }
TORCHCAPS_EXPORT int32_t lanes_f64() { return torchcaps::kLanes<double>; }

// 0, or 1 where something was thrown.
#define TORCHCAPS_CONVOLUTION(T, suffix)                                                                             \
  TORCHCAPS_EXPORT int32_t convolve_##suffix(                                                                        \
      int64_t B, int64_t H, int64_t W, int64_t C, int64_t N, int64_t kernel_h, int64_t kernel_w, int64_t stride,     \
      int64_t out_h, int64_t out_w, int64_t threads, const T* x, const T* weight, const T* bias, T* y) {             \
    return torchcaps::convolve<T>({B, H, W, C, N, kernel_h, kernel_w, stride, out_h, out_w, threads, x, weight, bias, \
                                   y}) ? 0 : 1;                                                                      \
  }
TORCHCAPS_CONVOLUTION(float, f32)
TORCHCAPS_CONVOLUTION(double, f64)
