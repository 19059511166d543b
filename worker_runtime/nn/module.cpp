#include "worker_runtime/nn/module.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/nn/tensor_parallel.hpp"

namespace dtrun::runtime {

std::string Scope::full_name(std::string_view name) const {
  return prefix_.empty() ? std::string(name) : fmt::format("{}.{}", prefix_, name);
}

Scope Scope::operator/(std::string_view name) const { return Scope(*unit_, full_name(name)); }

Parameter& Scope::parameter(std::string_view name, const Shape& shape, Init init) const {
  auto parameter = std::make_unique<Parameter>(full_name(name), shape, init);
  Parameter& reference = *parameter;
  unit_->owned_.push_back(std::move(parameter));
  unit_->uses_.push_back(&reference);
  return reference;
}

Parameter& Scope::share(Parameter& parameter) const {
  unit_->uses_.push_back(&parameter);
  return parameter;
}

bool Unit::owns(const Parameter& parameter) const noexcept {
  return std::ranges::any_of(owned_, [&](const auto& own) { return own.get() == &parameter; });
}

Tensor Unit::run(Tape& tape, const Tensor& activation, const Batch& batch) const {
  const auto* const ranks = tape.context().tensor_parallel;
  const bool cut = ranks != nullptr && ranks->sequence();
  const Lay between = cut ? Lay::sequence(batch.tokens.dim(1)) : Lay();
  const Value output = forward(tape, tape.input(activation, between), batch);
  const bool is_loss = output.lay().is_whole() && output.shape().numel() == 1;
  if (output.lay() != between && !is_loss) {
    throw UsageError("nn", fmt::format("tensor parallelism: the result of unit {} is {}, expected {}", name_,
                                       output.lay().to_string(), between.to_string()));
  }
  tape.finish(output);
  return output.tensor();
}

Parameter* Model::find(std::string_view name) const noexcept {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

std::int64_t Model::parameter_count() const noexcept {
  std::int64_t count = 0;
  for (const auto& unit : units_) {
    for (const Parameter* parameter : unit->parameters()) count += unit->owns(*parameter) ? parameter->numel() : 0;
  }
  return count;
}

void Model::append(std::unique_ptr<Unit> unit) {
  units_.push_back(std::move(unit));  // first: the index must never point at what is gone
  for (Parameter* parameter : units_.back()->parameters()) {
    const auto [known, is_new] = by_name_.emplace(parameter->name(), parameter);
    if (is_new) {
      parameters_.push_back(parameter);
    } else if (known->second != parameter) {
      throw UsageError("nn", fmt::format("two parameters are named \"{}\"", parameter->name()));
    }
  }
}

}  // namespace dtrun::runtime
