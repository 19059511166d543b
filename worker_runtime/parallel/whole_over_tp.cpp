#include "worker_runtime/parallel/whole_over_tp.hpp"

#include <algorithm>

namespace dtrun::runtime {

WholeOverTp::WholeOverTp(std::span<Parameter* const> parameters, ProcessGroup& group, Arena& arena) {
  std::int64_t largest = 0;
  for (const Parameter* parameter : parameters) {
    if (parameter->cut().is_cut()) largest = std::max(largest, parameter->local_shape(0).numel());
  }
  if (largest == 0) return;
  const Tensor own = group.allocate(Shape{largest}, DType::f32);
  const Tensor all = group.allocate(Shape{largest * group.size()}, DType::f32);
  for (Parameter* parameter : parameters) {
    if (!parameter->cut().is_cut()) continue;
    const auto part = parameter->local_shape(0).numel();  // the largest: gathered are equal parts
    own.zero();
    own.narrow(0, parameter->local_numel()).view(parameter->local_shape()).copy_from(parameter->value());
    group.all_gather(all.narrow(0, part * group.size()), own.narrow(0, part));
    const Tensor whole = Tensor::empty(parameter->shape(), DType::f32, arena);
    const Tensor parts = all.narrow(0, part * group.size()).to_host();
    change_on_host(whole, [&](const Tensor& here) {
      for (int rank = 0; rank < group.size(); ++rank)
        parameter->cut().copy_in(parameter->shape(), rank, parts.data<float>() + rank * part, here.data<float>());
    });
    held_.push_back({parameter, parameter->value()});
    parameter->bind_value(whole);
  }
}

WholeOverTp::~WholeOverTp() {
  for (auto& [parameter, part] : held_) parameter->bind_value(part);
}

void WholeOverTp::take_back() const {
  for (const auto& [parameter, part] : held_) {
    change_on_host(part, [&, p = parameter](const Tensor& here) {
      p->cut().copy_out(p->shape(), p->cut_rank(), p->value().to_host().data<float>(), here.data<float>());
    });
  }
}

}  // namespace dtrun::runtime
