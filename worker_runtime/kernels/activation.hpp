// Kernels of the activations and of rotary positions. See block.hpp; math.hpp has the formulas.
#pragma once

#include "worker_runtime/kernels/block.hpp"

namespace dtrun::runtime::kernels {

// y may be x.
template <class T>
struct GeluForward {
  static constexpr int kThreads = 256;
  const T* x;
  T* y;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, n, [&](std::int64_t i) { store(y + i, gelu(load(x + i))); });
  }
};

// dx may be dy.
template <class T>
struct GeluBackward {
  static constexpr int kThreads = 256;
  const T* x;
  const T* dy;
  T* dx;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, n, [&](std::int64_t i) { store(dx + i, load(dy + i) * gelu_derivative(load(x + i))); });
  }
};

template <class T>
struct SwigluForward {
  static constexpr int kThreads = 256;
  const T* gate;
  const T* up;
  T* y;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, n, [&](std::int64_t i) { store(y + i, silu(load(gate + i)) * load(up + i)); });
  }
};

template <class T>
struct SwigluBackward {
  static constexpr int kThreads = 256;
  const T* gate;
  const T* up;
  const T* dy;
  T* dgate;
  T* dup;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, n, [&](std::int64_t i) {
      const float g = load(gate + i);
      const float d = load(dy + i);
      const float u = load(up + i);
      store(dgate + i, d * u * silu_derivative(g));
      store(dup + i, d * silu(g));
    });
  }
};

// Rows of heads of 2 * half elements: pairs (x[i], x[half + i]) turned by the angles of row `row % time` of the table,
// times `direction` (1 or -1). One i for a pair; y may be x.
template <class T>
struct Rope {
  static constexpr int kThreads = 256;
  const T* x;
  const float* table;  // [time or more, 2 * half]: cosines, sines
  float direction;
  std::int64_t time;
  std::int64_t heads;
  std::int64_t half;
  T* y;
  std::int64_t pairs;  // rows * heads * half

  std::int64_t blocks() const { return element_blocks(pairs); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, pairs, [&](std::int64_t pair) {
      const std::int64_t head = pair / half;
      const std::int64_t i = pair % half;
      const float* const angles = table + head / heads % time * 2 * half;
      const std::int64_t at = head * 2 * half + i;
      const float a = load(x + at);
      const float b = load(x + at + half);
      const float c = angles[i];
      const float s = angles[half + i] * direction;
      store(y + at, a * c - b * s);
      store(y + at + half, b * c + a * s);
    });
  }
};

}  // namespace dtrun::runtime::kernels
