#include "worker_runtime/comm/process_group.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "worker_runtime/comm/queue.hpp"

namespace dtrun::runtime {

ProcessGroup::ProcessGroup(int rank, int size, GroupOptions options)
    : rank_(rank), size_(size), options_(std::move(options)) {
  if (options_.comm_thread) {
    queue_ =
        std::make_unique<CommQueue>([this](const Collective& call, const CommAction& action) { run(call, action); });
  }
}

ProcessGroup::~ProcessGroup() = default;

void ProcessGroup::stop_thread() noexcept { queue_.reset(); }

void ProcessGroup::set_action(std::string_view label, std::uint32_t id) {
  const std::size_t length = std::min(label.size(), action_.label.size() - 1);
  std::memcpy(action_.label.data(), label.data(), length);
  action_.label[length] = '\0';
  action_.id = id;
}

std::uint64_t ProcessGroup::bytes_sent_total() const {
  std::uint64_t total = 0;
  for (const Counter& counter : counters_) total += counter.bytes;
  return total;
}

void ProcessGroup::count(const Collective& call) {
  const Tensor* tensor = part_of(call);
  const std::uint64_t bytes = tensor != nullptr ? tensor->bytes() : 0;
  Counter& counter = counters_[static_cast<std::size_t>(call.op)];
  ++counter.calls;
  counter.bytes += bytes_sent(call.op, bytes, size_, call.root == rank_);
}

void ProcessGroup::submit(const Collective& call) {
  check_collective(call, rank_, size_);
  count(call);
  if (queue_) {
    queue_->push(call, action_).wait();
  } else {
    run(call, action_);
  }
}

Work ProcessGroup::submit_async(const Collective& call) {
  check_collective(call, rank_, size_);
  count(call);
  if (queue_) return queue_->push(call, action_);
  run(call, action_);
  return Work();
}

Work ProcessGroup::start_message(CommOp op, const Tensor& tensor, int peer, std::uint32_t tag) {
  Collective call{.op = op, .root = peer, .tag = tag};
  (op == CommOp::send ? call.input : call.output) = &tensor;
  check_collective(call, rank_, size_);
  count(call);
  return start(call, action_);
}

namespace {

Collective in_place(CommOp op, const Tensor& tensor, int root = -1, ReduceOp reduce = ReduceOp::sum) {
  return {.op = op, .reduce = reduce, .root = root, .input = &tensor, .output = &tensor};
}

Collective from_to(CommOp op, const Tensor& output, const Tensor& input, int root = -1,
                   ReduceOp reduce = ReduceOp::sum) {
  return {.op = op, .reduce = reduce, .root = root, .input = &input, .output = &output};
}

}  // namespace

void ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op) {
  submit(in_place(CommOp::all_reduce, tensor, -1, op));
}
void ProcessGroup::reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op) {
  submit(from_to(CommOp::reduce_scatter, output, input, -1, op));
}
void ProcessGroup::all_gather(const Tensor& output, const Tensor& input) {
  submit(from_to(CommOp::all_gather, output, input));
}
void ProcessGroup::broadcast(const Tensor& tensor, int root) { submit(in_place(CommOp::broadcast, tensor, root)); }
void ProcessGroup::reduce(const Tensor& tensor, int root, ReduceOp op) {
  submit(in_place(CommOp::reduce, tensor, root, op));
}
void ProcessGroup::gather(const Tensor& output, const Tensor& input, int root) {
  submit(from_to(CommOp::gather, output, input, root));
}
void ProcessGroup::scatter(const Tensor& output, const Tensor& input, int root) {
  submit(from_to(CommOp::scatter, output, input, root));
}
void ProcessGroup::all_to_all(const Tensor& output, const Tensor& input) {
  submit(from_to(CommOp::all_to_all, output, input));
}
void ProcessGroup::barrier() { submit({.op = CommOp::barrier}); }

void ProcessGroup::send(const Tensor& tensor, int destination, std::uint32_t tag) {
  start_message(CommOp::send, tensor, destination, tag).wait();
}
void ProcessGroup::recv(const Tensor& tensor, int source, std::uint32_t tag) {
  start_message(CommOp::recv, tensor, source, tag).wait();
}

void ProcessGroup::all_reduce(std::span<const Tensor> tensors, ReduceOp op) {
  for (const Tensor& tensor : tensors) all_reduce(tensor, op);
}
void ProcessGroup::broadcast(std::span<const Tensor> tensors, int root) {
  for (const Tensor& tensor : tensors) broadcast(tensor, root);
}
void ProcessGroup::reduce_scatter(std::span<const Tensor> outputs, std::span<const Tensor> inputs, ReduceOp op) {
  check_spans(outputs.size(), inputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) reduce_scatter(outputs[i], inputs[i], op);
}
void ProcessGroup::all_gather(std::span<const Tensor> outputs, std::span<const Tensor> inputs) {
  check_spans(outputs.size(), inputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) all_gather(outputs[i], inputs[i]);
}

Work ProcessGroup::all_reduce_async(const Tensor& tensor, ReduceOp op) {
  return submit_async(in_place(CommOp::all_reduce, tensor, -1, op));
}
// The queue runs in order, so the last one to end is the last one submitted; an error kills the group and reaches it
// too.
Work ProcessGroup::all_reduce_async(std::span<const Tensor> tensors, ReduceOp op) {
  Work last;
  for (const Tensor& tensor : tensors) last = all_reduce_async(tensor, op);
  return last;
}
Work ProcessGroup::reduce_scatter_async(const Tensor& output, const Tensor& input, ReduceOp op) {
  return submit_async(from_to(CommOp::reduce_scatter, output, input, -1, op));
}
Work ProcessGroup::all_gather_async(const Tensor& output, const Tensor& input) {
  return submit_async(from_to(CommOp::all_gather, output, input));
}
Work ProcessGroup::broadcast_async(const Tensor& tensor, int root) {
  return submit_async(in_place(CommOp::broadcast, tensor, root));
}
Work ProcessGroup::reduce_async(const Tensor& tensor, int root, ReduceOp op) {
  return submit_async(in_place(CommOp::reduce, tensor, root, op));
}
Work ProcessGroup::all_to_all_async(const Tensor& output, const Tensor& input) {
  return submit_async(from_to(CommOp::all_to_all, output, input));
}
Work ProcessGroup::send_async(const Tensor& tensor, int destination, std::uint32_t tag) {
  return start_message(CommOp::send, tensor, destination, tag);
}
Work ProcessGroup::recv_async(const Tensor& tensor, int source, std::uint32_t tag) {
  return start_message(CommOp::recv, tensor, source, tag);
}

}  // namespace dtrun::runtime
