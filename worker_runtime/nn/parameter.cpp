#include "worker_runtime/nn/parameter.hpp"

#include <fmt/format.h>

#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/elementwise.hpp"

namespace dtrun::runtime {

Parameter::Parameter(std::string name, const Shape& shape, Init init)
    : name_(std::move(name)), shape_(shape), init_(init) {}

const Tensor& Parameter::value() const {
  if (!value_.defined()) {
    throw ShapeError(
        "nn", fmt::format("parameter {} is used while no value is bound to it (sharded, or never initialised)", name_));
  }
  return value_;
}

void Parameter::set_cut(const TensorCut& cut, int rank) {
  DTRUN_ASSERT(!value_.defined() && !grad_.defined() && rank >= 0 && rank < cut.parts);
  cut_ = cut;
  cut_rank_ = rank;
}

void Parameter::bind_value(Tensor value) {
  const bool known = value.dtype() == DType::f32 || value.dtype() == DType::bf16;
  if (!value.defined() || !known || value.rank() != shape_.rank()) {
    throw ShapeError("nn", fmt::format("value of {}: {} {}, expected f32 or bf16 {}", name_, name_of(value.dtype()),
                                       value.shape().to_string(), shape_.to_string()));
  }
  value_ = std::move(value);
}

void Parameter::bind_grad(Tensor grad) {
  if (!grad.defined() || grad.dtype() != DType::f32 || grad.rank() != shape_.rank()) {
    throw ShapeError("nn", fmt::format("gradient of {}: {} {}, expected f32 {}", name_, name_of(grad.dtype()),
                                       grad.shape().to_string(), shape_.to_string()));
  }
  grad_ = std::move(grad);
  grad_filled_ = false;
}

void Parameter::release_grad() noexcept {
  grad_ = Tensor();
  grad_filled_ = false;
}

const Tensor& Parameter::grad() const {
  if (!grad_.defined()) throw ShapeError("nn", fmt::format("parameter {} has no place for its gradient", name_));
  return grad_;
}

Parameter::GradSlot Parameter::grad_slot() {
  const Tensor& place = grad();
  if (place.shape() != value().shape()) {
    throw ShapeError("nn", fmt::format("gradient of {} has shape {}, its value {}", name_, place.shape().to_string(),
                                       value_.shape().to_string()));
  }
  return {place, std::exchange(grad_filled_, true)};
}

void Parameter::fill_initial(std::uint64_t seed, const Tensor& out, ops::GlobalIndex where) const {
  if (out.device() != nullptr) {
    const Tensor values = Tensor::on_host(out.shape(), out.dtype());
    fill_initial(seed, values, where);
    return out.copy_from(values);
  }
  switch (init_.kind) {
    case Init::Kind::zeros:
      ops::fill(out, 0.0F);
      break;
    case Init::Kind::ones:
      ops::fill(out, 1.0F);
      break;
    case Init::Kind::normal:
      ops::fill_normal(out, init_.stddev, ops::RandomStream::of(seed, name_), where);
      break;
  }
}

GradTarget::GradTarget(RunContext& ctx, Parameter& parameter) : slot_(parameter.grad_slot()) {
  tensor_ = slot_.accumulate ? Tensor::empty(slot_.tensor.shape(), DType::f32, ctx.work) : slot_.tensor;
}

void GradTarget::commit() {
  if (slot_.accumulate) ops::add(slot_.tensor, tensor_, slot_.tensor);
}

}  // namespace dtrun::runtime
