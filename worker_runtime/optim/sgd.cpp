#include "worker_runtime/optim/sgd.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/sgd.hpp"

namespace dtrun::runtime {

void SGDConfig::validate() const {
  if (!(momentum >= 0) || !std::isfinite(momentum)) {
    throw UsageError("optim", fmt::format("momentum: {}, expected 0 or more", momentum));
  }
  if (!(weight_decay >= 0) || !std::isfinite(weight_decay)) {
    throw UsageError("optim", fmt::format("weight_decay: {}, expected 0 or more", weight_decay));
  }
  if (nesterov && momentum == 0) throw UsageError("optim", "nesterov: true, expected a momentum above 0 with it");
}

SGD::SGD(const SGDConfig& config, std::vector<OptimizerPiece> pieces, Arena& arena)
    : Optimizer(std::move(pieces)), config_(config) {
  config_.validate();
  if (config_.momentum != 0) buffers_ = make_state(arena);
}

void SGD::step(double lr, float grad_scale) {
  check_grads();
  ++steps_;
  const ops::SgdSettings settings{static_cast<float>(lr), static_cast<float>(config_.momentum),
                                  static_cast<float>(config_.weight_decay), config_.nesterov};
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    ops::sgd_step(pieces_[i].value, pieces_[i].grad, buffers_.empty() ? Tensor() : buffers_[i], settings, grad_scale);
  }
}

std::vector<OptimizerState> SGD::state() const {
  std::vector<OptimizerState> states;
  append_state("momentum_buffer", buffers_, states);
  return states;
}

}  // namespace dtrun::runtime
