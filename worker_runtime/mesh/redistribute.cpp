#include "worker_runtime/mesh/redistribute.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/mesh/exchange.hpp"
#include "worker_runtime/ops/elementwise.hpp"

namespace dtrun::runtime {

namespace {

// What adding leaves every other number as it is: -0.0 for floating point, because 0.0 would turn -0.0 into 0.0.
void fill_neutral(const Tensor& tensor) {
  if (tensor.dtype() == DType::f32 || tensor.dtype() == DType::bf16) {
    ops::fill(tensor, -0.0F);
  } else {
    tensor.zero();
  }
}

bool is_exchange(StepKind kind) {
  return kind == StepKind::all_gather || kind == StepKind::reduce_scatter || kind == StepKind::all_to_all;
}

}  // namespace

FlatSizes flat_sizes(const RedistributePlan& plan, int rank) {
  if (plan.steps.size() != 1 || !is_exchange(plan.steps[0].kind)) return {};
  const Exchange exchange = plan_exchange(plan, plan.steps[0], rank);
  return {exchange.leaves_in_place() ? exchange.elements_out() : 0,
          exchange.arrives_in_place() ? exchange.elements_in() : 0};
}

class Redistribution::Run {
 public:
  Run(DeviceMesh mesh, RedistributePlan plan, Tensor local, RedistributeOptions options)
      : mesh_(std::move(mesh)), plan_(std::move(plan)), now_(std::move(local)), options_(std::move(options)) {
    if (mesh_.shape() != plan_.mesh) {
      throw ShapeError("mesh",
                       fmt::format("a plan for mesh {} on mesh {}", plan_.mesh.to_string(), mesh_.shape().to_string()));
    }
    const FlatSizes flat = flat_sizes(plan_, mesh_.rank());
    check(now_, box_of(plan_.from).shape, flat.input, "the local tensor");
    if (options_.out.defined()) check(options_.out, box_of(plan_.to).shape, flat.output, "the tensor for the result");
    writable_ = options_.consume;
    advance();
  }

  const RedistributePlan& plan() const { return plan_; }

  Tensor wait() {
    while (exchange_) {
      finish_collective();
      advance();
    }
    return now_;
  }

 private:
  Box box_of(const Layout& layout) const { return local_box(plan_.shape, layout, plan_.mesh, mesh_.rank()); }
  bool is_last() const { return at_ + 1 == plan_.steps.size(); }

  void check(const Tensor& tensor, const Shape& shape, std::int64_t flat, const char* role) const {
    const bool fits = tensor.shape() == shape || (flat > 0 && tensor.shape() == Shape({flat}));
    if (tensor.defined() && fits && tensor.dtype() == plan_.dtype) return;
    throw ShapeError("mesh", fmt::format("{} is {} {}, expected {} {}: {} of {} on rank {} of mesh {}", role,
                                         name_of(tensor.dtype()), tensor.shape().to_string(), name_of(plan_.dtype),
                                         shape.to_string(), plan_.from.to_string(), plan_.shape.to_string(),
                                         mesh_.rank(), plan_.mesh.to_string()));
  }

  Tensor allocate(const Shape& shape, bool is_result) const {
    return mesh_.all().allocate(shape, plan_.dtype, is_result ? options_.tag : MemoryTag::comm);
  }
  // Where the elements after this step go.
  Tensor destination(const Shape& shape) const {
    return is_last() && options_.out.defined() ? options_.out.view(shape) : allocate(shape, is_last());
  }
  void become(Tensor tensor) {
    now_ = std::move(tensor);
    writable_ = true;
  }

  // Runs steps up to the start of a collective, or to the end.
  void advance() {
    for (; at_ < plan_.steps.size(); ++at_) {
      const RedistributeStep& step = plan_.steps[at_];
      switch (step.kind) {
        case StepKind::slice:
          slice(step);
          break;
        case StepKind::keep_first:
          keep_first(step);
          break;
        case StepKind::pad:
          pad(step);
          break;
        default:
          start_collective(step);
          if (exchange_) return;
      }
    }
    settle();
  }

  void settle() {
    if (settled_) return;
    settled_ = true;
    if (options_.out.defined()) {
      if (now_.begins_at(options_.out)) return;
      options_.out.copy_from(now_);
      now_ = options_.out;
    } else if (!writable_ && !plan_.steps.empty()) {  // slices of the input
      const Tensor copy = allocate(now_.shape(), true);
      copy.copy_from(now_);
      now_ = copy;
    }
  }

  void slice(const RedistributeStep& step) {
    const Box part = box_of(step.after).relative_to(box_of(step.before));
    if (part.is_contiguous_in(now_.shape())) {
      const auto first = part.numel() == 0 ? 0 : static_cast<std::size_t>(part.first_in(now_.shape()));
      now_ =
          Tensor::from_storage(now_.storage(), now_.offset() + first * size_of(plan_.dtype), part.shape, plan_.dtype);
      return;
    }
    const Tensor result = destination(part.shape);
    copy_box_out(result, now_, part);
    become(result);
  }

  void keep_first(const RedistributeStep& step) {
    if (mesh_.shape().group_rank(step.axes, mesh_.rank()) == 0) return;
    const Tensor result = destination(now_.shape());
    fill_neutral(result);
    become(result);
  }

  void pad(const RedistributeStep& step) {
    const Box whole = box_of(step.after);
    const Tensor result = destination(whole.shape);
    fill_neutral(result);
    copy_box_in(result, box_of(step.before).relative_to(whole), now_);
    become(result);
  }

  void start_collective(const RedistributeStep& step) {
    if (plan_.part_of(step, mesh_.rank()) == 0) {  // nothing anywhere in this group
      become(destination(box_of(step.after).shape));
      return;
    }
    ProcessGroup& group = mesh_.group(step.axes);
    if (step.kind == StepKind::all_reduce) {
      if (!writable_) {
        const Tensor copy = destination(now_.shape());
        copy.copy_from(now_);
        become(copy);
      }
      exchange_.emplace();
      exchange_->work = group.all_reduce_async(now_);
      return;
    }
    exchange_ = plan_exchange(plan_, step, mesh_.rank());
    const std::int64_t count = exchange_->elements_in();
    const bool into_result = exchange_->arrives_in_place() && is_last();
    exchange_->received = into_result && options_.out.numel() == count
                              ? options_.out
                              : allocate({count}, into_result && !options_.out.defined());
    exchange_->begin(group, now_, [this](std::int64_t elements) { return allocate({elements}, false); });
    if (!exchange_->sent.begins_at(now_)) now_ = Tensor();  // a copy is on its way
  }

  void finish_collective() {
    const RedistributeStep& step = plan_.steps[at_];
    exchange_->work.wait();
    if (step.kind != StepKind::all_reduce) {
      const Shape shape = box_of(step.after).shape;
      if (exchange_->arrives_in_place()) {
        const Tensor& whole = exchange_->received;
        become(Tensor::from_storage(whole.storage(), whole.offset(), shape, plan_.dtype));
      } else {
        const Tensor result = destination(shape);
        exchange_->unpack(result);
        become(result);
      }
    }
    exchange_.reset();
    ++at_;
  }

  DeviceMesh mesh_;
  RedistributePlan plan_;
  Tensor now_;
  RedistributeOptions options_;
  bool writable_ = false;  // nobody else reads now_
  bool settled_ = false;
  std::size_t at_ = 0;
  std::optional<Exchange> exchange_;
};

Redistribution::Redistribution(DeviceMesh mesh, RedistributePlan plan, Tensor local, RedistributeOptions options)
    : run_(std::make_unique<Run>(std::move(mesh), std::move(plan), std::move(local), std::move(options))) {}
Redistribution::Redistribution(Redistribution&&) noexcept = default;
Redistribution& Redistribution::operator=(Redistribution&&) noexcept = default;
Redistribution::~Redistribution() = default;

const RedistributePlan& Redistribution::plan() const { return run_->plan(); }
Tensor Redistribution::wait() { return run_->wait(); }

}  // namespace dtrun::runtime
