#include "worker_runtime/nn/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/core/device_memory.hpp"
#include "worker_runtime/nn/tensor_parallel.hpp"
#include "worker_runtime/ops/attention.hpp"

namespace dtrun::runtime {
namespace {

class RotaryNode final : public Node {
 public:
  // `first`: position of the first place.
  RotaryNode(std::shared_ptr<RotaryTable> table, std::int64_t first) : table_(std::move(table)), first_(first) {}
  std::string_view name() const override { return "rotary"; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override {
    const Tensor& x = inputs[0];
    const Tensor y = Tensor::empty(x.shape(), ctx.dtype(), ctx.activation);
    ops::rope_forward(x, rows(x), y);
    numel_ = x.numel();
    return y;
  }
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override {
    if (!grads[0].needed) return;
    const Tensor dx = Tensor::empty(grad_out.shape(), ctx.dtype(), ctx.work);
    ops::rope_backward(grad_out, rows(grad_out), dx);
    grads[0].deliver(ctx, dx);
  }
  double flops() const override { return 3.0 * static_cast<double>(numel_); }

 private:
  // Wrong ranks are the op's to refuse.
  Tensor rows(const Tensor& x) const {
    const std::int64_t places = x.rank() == 3 ? x.dim(1) : 1;
    if (x.is_abstract()) return table_->abstract(places);
    return table_->at_least(first_ + places, x.device()).narrow(first_, places);
  }
  std::shared_ptr<RotaryTable> table_;
  std::int64_t first_;
  std::int64_t numel_ = 0;
};

// Keeps q, k, v, its result and one number per row and head.
class GroupedAttentionNode final : public Node {
 public:
  GroupedAttentionNode(std::int64_t heads, std::int64_t kv_heads)
      : heads_(static_cast<int>(heads)), kv_heads_(static_cast<int>(kv_heads)) {}
  std::string_view name() const override { return "grouped_attention"; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override {
    q_ = inputs[0];
    k_ = inputs[1];
    v_ = inputs[2];
    out_ = Tensor::empty(q_.shape(), ctx.dtype(), ctx.activation);
    if (q_.rank() == 3) lse_ = Tensor::empty({q_.dim(0), heads_, q_.dim(1)}, DType::f32, ctx.activation);
    ops::grouped_attention_forward(q_, k_, v_, heads_, kv_heads_, out_, lse_);
    return out_;
  }
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override {
    const auto fresh = [&](const Tensor& like) { return Tensor::empty(like.shape(), ctx.dtype(), ctx.work); };
    const ops::GroupedAttentionGrads d{fresh(q_), fresh(k_), fresh(v_)};  // one pass makes all three
    ops::grouped_attention_backward(q_, k_, v_, out_, lse_, grad_out, heads_, kv_heads_, d);
    if (grads[0].needed) grads[0].deliver(ctx, d.dq);
    if (grads[1].needed) grads[1].deliver(ctx, d.dk);
    if (grads[2].needed) grads[2].deliver(ctx, d.dv);
  }
  // Two products over the lower triangle.
  double flops() const override {
    return 2.0 * static_cast<double>(out_.numel()) * static_cast<double>(out_.dim(1) + 1);
  }
  std::size_t bytes() const override { return lse_.bytes(); }

 private:
  int heads_, kv_heads_;
  Tensor q_, k_, v_, out_, lse_;
};

// In no account.
Tensor make_table(const Shape& shape, DeviceMemory* device) {
  const auto bytes = static_cast<std::size_t>(shape.numel()) * sizeof(float);
  constexpr std::align_val_t kAlignment{Arena::kAlignment};
  std::byte* const data =
      device != nullptr ? device->allocate(bytes) : static_cast<std::byte*>(::operator new(bytes, kAlignment));
  const auto release = [device](std::byte* block, std::size_t) {
    if (device != nullptr) return device->deallocate(block);
    ::operator delete (block, std::align_val_t{Arena::kAlignment});
  };
  return Tensor::from_storage(std::make_shared<Storage>(data, bytes, release, device), 0, shape, DType::f32);
}

}  // namespace

const Tensor& RotaryTable::at_least(std::int64_t positions, DeviceMemory* device) {
  Tensor& table = tables_[device];
  if (table.defined() && table.dim(0) >= positions) return table;
  // Doubled, so that sequences that grow by one make few tables.
  const std::int64_t rows = table.defined() ? std::max(positions, 2 * table.dim(0)) : positions;
  const Tensor larger = make_table({rows, head_dim_}, device);
  if (device != nullptr) {
    larger.copy_from(at_least(rows).narrow(0, rows));
  } else {
    ops::rope_table(theta_, larger, scaling_);
  }
  return table = larger;
}

Value rotary(Tape& tape, const Value& x, const std::shared_ptr<RotaryTable>& table) {
  const std::int64_t first = x.lay().is_sequence() ? tensor_parallel(tape).sequence_range(x.lay().extent).start : 0;
  return tape.apply_as<RotaryNode>(x.lay(), {x}, table, first);
}

Value grouped_attention(Tape& tape, const Value& q, const Value& k, const Value& v, std::int64_t heads,
                        std::int64_t kv_heads) {
  if (!q.lay().is_columns()) return tape.apply<GroupedAttentionNode>({q, k, v}, heads, kv_heads);
  const auto& ranks = tensor_parallel(tape);
  const std::int64_t own_heads = heads_of_rank(ranks, "heads", heads);
  if (k.lay().is_columns() && v.lay().is_columns()) {
    return tape.apply_as<GroupedAttentionNode>(q.lay(), {q, k, v}, own_heads,
                                               heads_of_rank(ranks, "heads of keys", kv_heads));
  }
  if (k.lay().is_columns() || v.lay().is_columns() || kv_heads != 1) {
    throw UsageError("parallel",
                     fmt::format("tensor parallelism: attention with {} heads of keys whose queries are cut "
                                 "takes keys and values that are cut likewise; keys are {}, values {}",
                                 kv_heads, k.lay().to_string(), v.lay().to_string()));
  }
  // One head of keys serves the heads of all ranks.
  return tape.apply_as<GroupedAttentionNode>(q.lay(), {q, enter(tape, k), enter(tape, v)}, own_heads, 1);
}

}  // namespace dtrun::runtime
