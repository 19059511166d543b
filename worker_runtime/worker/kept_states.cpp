#include "worker_runtime/worker/kept_states.hpp"

#include <utility>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {

KeptStates::KeptStates(std::vector<StatePiece> state, std::int64_t every) : state_(std::move(state)), every_(every) {}

void KeptStates::start(std::int64_t steps, std::int64_t optimizer_steps) {
  copies_.clear();
  good_steps_ = every_ - 1;
  after_step(steps, optimizer_steps);
}

void KeptStates::after_step(std::int64_t steps, std::int64_t optimizer_steps) {
  is_back_ = false;
  if (++good_steps_ < every_) return;
  good_steps_ = 0;
  Copy copy;
  if (copies_.size() == 2) {
    copy = std::move(copies_.front());
    copies_.pop_front();
  } else {
    for (const auto& piece : state_) copy.tensors.push_back(Tensor::on_host(piece.tensor.shape(), DType::f32));
  }
  copy.point = {steps, optimizer_steps};
  for (std::size_t i = 0; i < state_.size(); ++i) copy.tensors[i].copy_from(state_[i].tensor);
  copies_.push_back(std::move(copy));
}

KeptStates::Point KeptStates::go_back() {
  DTRUN_ASSERT(!copies_.empty());
  if (is_back_ && copies_.size() > 1) copies_.pop_back();
  is_back_ = true;
  good_steps_ = 0;
  const auto& copy = copies_.back();
  for (std::size_t i = 0; i < state_.size(); ++i) state_[i].tensor.copy_from(copy.tensors[i]);
  return copy.point;
}

}  // namespace dtrun::runtime
