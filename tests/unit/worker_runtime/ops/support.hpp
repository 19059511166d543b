// What the tests of the ops share: tensors of random values, and references in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/catch.hpp"
#include "worker_runtime/ops/cpu_level.hpp"
#include "worker_runtime/ops/random.hpp"
#include "worker_runtime/ops/threads.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::test {

using Doubles = std::vector<double>;

inline Arena& arena() {
  static MemoryAccount account;
  static Arena instance(MemoryTag::work, account);
  return instance;
}

inline Tensor empty(const Shape& shape, DType dtype = DType::f32) {
  Tensor x = Tensor::empty(shape, dtype, arena());
  if (x.bytes() != 0) std::memset(x.raw(), 0xFF, x.bytes());  // NaN: an element that an op forgets shows
  return x;
}

inline Tensor random(const Shape& shape, std::uint64_t stream, float stddev = 1.0F) {
  Tensor x = empty(shape);
  ops::fill_normal(x, stddev, {7, stream});
  return x;
}

inline Tensor integers(const Shape& shape, const std::vector<std::int32_t>& values) {
  Tensor x = empty(shape, DType::i32);
  std::copy(values.begin(), values.end(), x.data<std::int32_t>());
  return x;
}

inline Doubles doubles(const Tensor& x) {
  const auto span = x.span<float>();
  return {span.begin(), span.end()};
}

// Largest |got - expected| relative to the largest |expected| (at least `floor`).
inline double error_of(const Tensor& got, const Doubles& expected, double floor = 1e-3) {
  REQUIRE(static_cast<std::size_t>(got.numel()) == expected.size());
  double worst = 0;
  double size = floor;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got.data<float>()[i]) - expected[i]);
    if (!(difference <= worst)) worst = difference;  // NaN counts as worst
    size = std::max(size, std::abs(expected[i]));
  }
  return worst / size;
}

// d(sum of weight * f(x))/dx by central differences, `f` in double.
inline Doubles finite_difference(const std::function<Doubles(const Doubles&)>& f, Doubles x, const Doubles& weight,
                                 double h = 1e-5) {
  const auto loss = [&](const Doubles& at) {
    const Doubles y = f(at);
    double total = 0;
    for (std::size_t i = 0; i < y.size(); ++i) total += y[i] * weight[i];
    return total;
  };
  Doubles gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double keep = x[i];
    x[i] = keep + h;
    const double above = loss(x);
    x[i] = keep - h;
    const double below = loss(x);
    x[i] = keep;
    gradient[i] = (above - below) / (2 * h);
  }
  return gradient;
}

// Runs `body` on every CPU level of this machine, then goes back to the level there was.
inline void on_every_level(const std::function<void()>& body) {
  const ops::CpuLevel before = ops::cpu_level();
  for (const auto level :
       {ops::CpuLevel::plain, ops::CpuLevel::v2, ops::CpuLevel::v3, ops::CpuLevel::v4, ops::CpuLevel::twin}) {
    if (!ops::cpu_level_available(level)) continue;
    INFO("CPU level " << std::string(ops::name_of(level)));
    ops::set_cpu_level(level);
    body();
  }
  ops::set_cpu_level(before);
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

}  // namespace dtrun::runtime::test
