// Learning rate by step: linear warm-up, then a cosine down to `min_lr`, then `min_lr`.
#pragma once

#include <cstdint>

namespace dtrun::runtime {

struct CosineSchedule {
  double lr = 3e-4;
  double min_lr = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 1;

  void validate() const;  // throws UsageError
  // `step` counts from 0. Warm-up: lr * (step + 1) / warmup_steps, so that the first step is not lost.
  double at(std::int64_t step) const noexcept;
};

}  // namespace dtrun::runtime
