#include "worker_runtime/optim/schedule.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {

void CosineSchedule::validate() const {
  if (!(lr >= 0) || !std::isfinite(lr)) throw UsageError("optim", fmt::format("lr: {}, expected 0 or more", lr));
  if (!(min_lr >= 0 && min_lr <= lr)) {
    throw UsageError("optim", fmt::format("min_lr: {}, expected 0 to lr = {}", min_lr, lr));
  }
  if (warmup_steps < 0) throw UsageError("optim", fmt::format("warmup_steps: {}, expected 0 or more", warmup_steps));
  if (total_steps < 1) throw UsageError("optim", fmt::format("total_steps: {}, expected 1 or more", total_steps));
}

double CosineSchedule::at(std::int64_t step) const noexcept {
  if (step < warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (step >= total_steps) return min_lr;
  const double progress = static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  return min_lr + (lr - min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace dtrun::runtime
