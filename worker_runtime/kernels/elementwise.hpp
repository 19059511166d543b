// Kernels over the elements of tensors. See block.hpp.
#pragma once

#include "worker_runtime/kernels/block.hpp"

namespace dtrun::runtime::kernels {

template <class T>
struct Fill {
  static constexpr int kThreads = 256;
  T* x;
  float value;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, n, [&](std::int64_t i) { store(x + i, value); });
  }
};

// x *= factor
template <class T>
struct Scale {
  static constexpr int kThreads = 256;
  T* x;
  float factor;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, n, [&](std::int64_t i) { store(x + i, load(x + i) * factor); });
  }
};

// x *= *factor
template <class T>
struct ScaleBy {
  static constexpr int kThreads = 256;
  T* x;
  const float* factor;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const float by = *factor;
    if (by != 1.0F) for_elements(block, n, [&](std::int64_t i) { store(x + i, load(x + i) * by); });
  }
};

// out = a + b; out may be a or b.
template <class T>
struct Add {
  static constexpr int kThreads = 256;
  const T* a;
  const T* b;
  T* out;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, n, [&](std::int64_t i) { store(out + i, load(a + i) + load(b + i)); });
  }
};

// out[i] = a[i] + b[i % period]: a bias for every row, or the positions of a sequence for every sequence. out may be a.
template <class T>
struct AddPeriodic {
  static constexpr int kThreads = 256;
  const T* a;
  const T* b;
  std::int64_t period;
  T* out;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, n, [&](std::int64_t i) { store(out + i, load(a + i) + load(b + i % period)); });
  }
};

// y += factor * x
template <class T>
struct Axpy {
  static constexpr int kThreads = 256;
  float factor;
  const T* x;
  T* y;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, n, [&](std::int64_t i) { store(y + i, load(y + i) + factor * load(x + i)); });
  }
};

template <class From, class To>
struct Cast {
  static constexpr int kThreads = 256;
  const From* x;
  To* y;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, n, [&](std::int64_t i) { store(y + i, load(x + i)); });
  }
};

struct RoundToBf16 {
  static constexpr int kThreads = 256;
  float* x;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, n, [&](std::int64_t i) {
      Bf16 narrow;
      store(&narrow, x[i]);
      x[i] = load(&narrow);
    });
  }
};

}  // namespace dtrun::runtime::kernels
