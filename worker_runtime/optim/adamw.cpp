#include "worker_runtime/optim/adamw.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string_view>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/adamw.hpp"

namespace dtrun::runtime {

void AdamWConfig::validate() const {
  const auto expect = [](std::string_view field, double value, bool good, std::string_view wanted) {
    if (!good || !std::isfinite(value))
      throw UsageError("optim", fmt::format("{}: {}, expected {}", field, value, wanted));
  };
  expect("beta1", beta1, beta1 >= 0 && beta1 < 1, "0 up to, not including, 1");
  expect("beta2", beta2, beta2 >= 0 && beta2 < 1, "0 up to, not including, 1");
  expect("eps", eps, eps >= 0, "0 or more");
  expect("weight_decay", weight_decay, weight_decay >= 0, "0 or more");
}

AdamW::AdamW(const AdamWConfig& config, std::vector<OptimizerPiece> pieces, Arena& arena)
    : Optimizer(std::move(pieces)), config_(config), exp_avg_(make_state(arena)), exp_avg_sq_(make_state(arena)) {
  config_.validate();
}

void AdamW::step(double lr, float grad_scale) {
  check_grads();
  ++steps_;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const OptimizerPiece& piece = pieces_[i];
    const bool decays = piece.is_matrix || !config_.decay_matrices_only;
    const ops::AdamWSettings settings{lr, config_.beta1, config_.beta2, config_.eps, decays ? config_.weight_decay : 0};
    ops::adamw_step(piece.value, piece.grad.view(piece.value.shape()), exp_avg_[i], exp_avg_sq_[i], settings, steps_,
                    grad_scale);
  }
}

std::vector<OptimizerState> AdamW::state() const {
  std::vector<OptimizerState> states;
  append_state("exp_avg", exp_avg_, states);
  append_state("exp_avg_sq", exp_avg_sq_, states);
  return states;
}

}  // namespace dtrun::runtime
