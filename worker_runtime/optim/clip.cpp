#include "worker_runtime/optim/clip.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "worker_runtime/ops/cpu_level.hpp"
#include "worker_runtime/ops/squares.hpp"

#define DTRUN_INLINE inline __attribute__((always_inline))

namespace dtrun::runtime {
namespace {

using Limbs = kernels::SquareLimbs;

// A square below kSmall is cut into whole numbers of three units. Each cut is exact, and so is the double sum of 512
// such numbers, because none of them needs more than 2^44 units: 44 + 9 = 53 bits.
constexpr int kBlock = 512;
constexpr double kSmall = Limbs::kSmall;
constexpr double kUnits[3] = {Limbs::unit(0), Limbs::unit(1), Limbs::unit(2)};
constexpr double rounder(double unit) { return Limbs::rounder(unit); }

struct BlockSums {
  double units[3];
  bool small;  // every square was below kSmall; otherwise the sums mean nothing
};

using Floats = float __attribute__((vector_size(16)));
using Doubles = double __attribute__((vector_size(32)));

DTRUN_INLINE BlockSums sum_block(const float* x) {
  Doubles sums[3] = {};
  auto small = Doubles{} == Doubles{};
  for (int i = 0; i < kBlock; i += 4) {
    Floats narrow;
    std::memcpy(&narrow, x + i, sizeof narrow);
    const auto wide = __builtin_convertvector(narrow, Doubles);
    const Doubles square = wide * wide;
    small &= square < kSmall;
    const Doubles high = (square + rounder(kUnits[2])) - rounder(kUnits[2]);
    const Doubles rest = square - high;
    const Doubles middle = (rest + rounder(kUnits[1])) - rounder(kUnits[1]);
    const Doubles tail = rest - middle;
    sums[2] += high;
    sums[1] += middle;
    sums[0] += (tail + rounder(kUnits[0])) - rounder(kUnits[0]);
  }
  BlockSums result{};
  for (int k = 0; k < 3; ++k) result.units[k] = (sums[k][0] + sums[k][1] + sums[k][2] + sums[k][3]) / kUnits[k];
  result.small = (small[0] & small[1] & small[2] & small[3]) != 0;
  return result;
}

BlockSums sum_block_plain(const float* x) { return sum_block(x); }
#if defined(__x86_64__)
__attribute__((target("avx2"))) BlockSums sum_block_avx2(const float* x) { return sum_block(x); }
auto* pick() {
  return ops::cpu_level() == ops::CpuLevel::v3 || ops::cpu_level() == ops::CpuLevel::v4 ? sum_block_avx2
                                                                                        : sum_block_plain;
}
#else
auto* pick() { return sum_block_plain; }
#endif

}  // namespace

void SquareSum::add(std::span<const float> values) noexcept {
  auto* const sum = pick();
  std::size_t at = 0;
  for (; at + kBlock <= values.size(); at += kBlock) {
    const BlockSums sums = sum(values.data() + at);
    if (!sums.small) {
      for (const float x : values.subspan(at, kBlock)) add(Limbs::of_square(static_cast<double>(x) * x));
      continue;
    }
    for (std::size_t k = 0; k < 3; ++k) limbs_[k] += static_cast<std::int64_t>(sums.units[k]);
  }
  for (const float x : values.subspan(at)) add(Limbs::of_square(static_cast<double>(x) * x));
}

void SquareSum::add(const Limbs& limbs) noexcept {
  for (std::size_t k = 0; k < limbs_.size(); ++k) limbs_[k] += limbs.of[k];
  not_finite_ |= static_cast<std::uint32_t>(limbs.not_finite);
}

void SquareSum::add(std::span<const Tensor> tensors) {
  for (const Tensor& tensor : tensors) {
    if (!tensor.is_abstract() && tensor.device() == nullptr) add(std::span<const float>(tensor.span<float>()));
  }
  for (const Limbs& limbs : ops::squares_on_device(tensors)) add(limbs);
}

void SquareSum::merge(const SquareSum& other) noexcept {
  for (std::size_t k = 0; k < limbs_.size(); ++k) limbs_[k] += other.limbs_[k];
  not_finite_ |= other.not_finite_;
}

double SquareSum::norm() const noexcept {
  if ((not_finite_ & 2U) != 0) return std::nan("");
  if (not_finite_ != 0) return HUGE_VAL;
  double sum = 0;
  for (std::size_t k = 0; k < limbs_.size(); ++k) {
    sum += static_cast<double>(limbs_[k]) * Limbs::unit(static_cast<int>(k));
  }
  return std::sqrt(std::max(sum, 0.0));
}

float clip_coefficient(double norm, double max_norm) noexcept {
  if (max_norm <= 0) return 1.0F;
  // A nan stays a nan, as in torch: the step then shows what happened instead of hiding it.
  const double coefficient = max_norm / (norm + 1e-6);
  return static_cast<float>(coefficient > 1.0 ? 1.0 : coefficient);
}

}  // namespace dtrun::runtime
