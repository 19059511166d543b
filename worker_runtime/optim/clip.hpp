// Clipping by the global norm. The sum of squares is exact (fixed-point limbs), so it does not depend on the order of
// the elements or on how they are spread over ranks: every layout clips with the same coefficient, bit by bit.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "worker_runtime/kernels/square_limbs.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime {

// A plain value (trivially copyable: ranks exchange it as bytes). Elements below 2^-55 in magnitude count as zero.
class SquareSum {
 public:
  void add(std::span<const float> values) noexcept;
  // f32 elements of any place; several tensors of one device are waited for once. Abstract ones add nothing.
  void add(const Tensor& values) { add(std::span(&values, 1)); }
  void add(std::span<const Tensor> tensors);
  // The sum over another part of the elements; any order gives the same bits.
  void merge(const SquareSum& other) noexcept;
  // sqrt of the sum; inf or nan when an element was.
  double norm() const noexcept;

 private:
  __extension__ typedef __int128 Wide;
  static constexpr int kLimbs = kernels::SquareLimbs::kLimbs;
  void add(const kernels::SquareLimbs& limbs) noexcept;
  std::array<Wide, kLimbs> limbs_{};  // limb k counts units of 2^(44 k - 110)
  std::uint32_t not_finite_ = 0;      // bit 0: an infinity, bit 1: a nan
};

// torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)). max_norm <= 0 means no clipping: 1.
float clip_coefficient(double norm, double max_norm) noexcept;

}  // namespace dtrun::runtime
