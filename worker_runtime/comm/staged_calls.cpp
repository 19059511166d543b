#include "worker_runtime/comm/staged_calls.hpp"

#include <algorithm>

namespace dtrun::runtime {
namespace {

bool is_of_host(const Tensor* tensor) { return tensor != nullptr && tensor->defined() && tensor->device() == nullptr; }

}  // namespace

bool StagedCalls::needed(std::span<const Collective> calls) {
  return std::ranges::any_of(calls,
                             [](const Collective& call) { return is_of_host(call.input) || is_of_host(call.output); });
}

const Tensor* StagedCalls::on_device(const Tensor* tensor, bool with_elements, Arena& arena) {
  if (!is_of_host(tensor)) return tensor;
  copies_.push_back(Tensor::empty(tensor->shape(), tensor->dtype(), arena));
  if (with_elements) copies_.back().copy_from(*tensor);
  return &copies_.back();
}

StagedCalls::StagedCalls(std::span<const Collective> calls, Arena& device_arena) : calls_(calls) {
  for (const Collective& call : calls) {
    Collective& copy = staged_.emplace_back(call);
    copy.input = on_device(call.input, true, device_arena);
    copy.output = call.output == call.input ? copy.input : on_device(call.output, false, device_arena);
  }
}

void StagedCalls::copy_back(int rank) const {
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const Collective& call = calls_[i];
    const bool is_changed = call.op != CommOp::reduce || call.root == rank;
    if (is_changed && call.output != nullptr && call.output != staged_[i].output)
      call.output->copy_from(*staged_[i].output);
  }
}

}  // namespace dtrun::runtime
