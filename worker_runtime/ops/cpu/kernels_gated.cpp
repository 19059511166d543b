// What Llama needs beside GPT-2's kernels: the gated activation and rotary positions.
#include "worker_runtime/ops/cpu/functors.hpp"
#include "worker_runtime/ops/cpu/kernels.hpp"
#include "worker_runtime/ops/cpu/rows.hpp"

namespace dtrun::runtime::ops::DTRUN_LEVEL {

void swiglu_forward(const float* gate, const float* up, float* y, std::int64_t n) {
  for_vectors(
      n, [&](std::int64_t i) { store(y + i, silu(load(gate + i)) * load(up + i)); },
      [&](std::int64_t i, std::int64_t c) {
        store_some(y + i, silu(load_some(gate + i, c)) * load_some(up + i, c), c);
      });
}

void swiglu_backward(const float* gate, const float* up, const float* dy, float* dgate, float* dup, std::int64_t n) {
  for_vectors(
      n,
      [&](std::int64_t i) {
        const VecF g = load(gate + i);
        const VecF d = load(dy + i);
        store(dgate + i, d * load(up + i) * silu_derivative(g));
        store(dup + i, d * silu(g));
      },
      [&](std::int64_t i, std::int64_t c) {
        const VecF g = load_some(gate + i, c);
        const VecF d = load_some(dy + i, c);
        store_some(dgate + i, d * load_some(up + i, c) * silu_derivative(g), c);
        store_some(dup + i, d * silu(g), c);
      });
}

void rope(const float* x, const float* cosines, const float* sines, float direction, std::int64_t heads,
          std::int64_t half, float* y) {
  for (std::int64_t head = 0; head < heads; ++head, x += 2 * half, y += 2 * half) {
    const auto turn = [&](VecF a, VecF b, VecF c, VecF s, VecF& first, VecF& second) {
      first = a * c - b * s;
      second = b * c + a * s;
    };
    VecF first{};
    VecF second{};
    for_vectors(
        half,
        [&](std::int64_t i) {
          turn(load(x + i), load(x + half + i), load(cosines + i), load(sines + i) * direction, first, second);
          store(y + i, first);
          store(y + half + i, second);
        },
        [&](std::int64_t i, std::int64_t c) {
          turn(load_some(x + i, c), load_some(x + half + i, c), load_some(cosines + i, c),
               load_some(sines + i, c) * direction, first, second);
          store_some(y + i, first, c);
          store_some(y + half + i, second, c);
        });
  }
}

}  // namespace dtrun::runtime::ops::DTRUN_LEVEL
