#include "worker_runtime/optim/sgd.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "rendezvous/base/error.hpp"

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
  const auto rate = static_cast<float>(lr);
  const auto momentum = static_cast<float>(config_.momentum);
  const auto decay = static_cast<float>(config_.weight_decay);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].value.is_abstract()) continue;
    const auto value = pieces_[i].value.span<float>();
    const float* grad = pieces_[i].grad.data<float>();
    float* buffer = buffers_.empty() ? nullptr : buffers_[i].data<float>();
    for (std::size_t k = 0; k < value.size(); ++k) {
      float g = grad[k] * grad_scale + decay * value[k];
      if (buffer != nullptr) {
        // The buffer starts at zero, so the first step gives b = g as torch does.
        buffer[k] = momentum * buffer[k] + g;
        g = config_.nesterov ? g + momentum * buffer[k] : buffer[k];
      }
      value[k] -= rate * g;
    }
  }
}

std::vector<OptimizerState> SGD::state() const {
  std::vector<OptimizerState> states;
  append_state("momentum_buffer", buffers_, states);
  return states;
}

}  // namespace dtrun::runtime
