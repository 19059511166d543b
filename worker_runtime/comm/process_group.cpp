#include "worker_runtime/comm/process_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "rendezvous/base/error.hpp"
#include "rendezvous/contract/flight_record.hpp"
#include "worker_runtime/comm/queue.hpp"

namespace dtrun::runtime {

ProcessGroup::ProcessGroup(int rank, int size, GroupOptions options)
    : rank_(rank), size_(size), options_(std::move(options)) {
  if (options_.comm_thread) {
    queue_ = std::make_unique<CommQueue>([this](const Collective& call, const CommAction& action) {
      run(call, action);
      if (options_.flight != nullptr) options_.flight->finished(call.flight);
    });
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

void ProcessGroup::admit(const Collective& call) {
  check_collective(call, rank_, size_);
  if (!takes_device_tensors()) {
    for (const Tensor* tensor : {call.input, call.output}) {
      if (tensor != nullptr && tensor->device() != nullptr) {
        throw UsageError("comm", fmt::format("backend {} moves host memory only: {} of a tensor on a device", backend(),
                                             name_of(call.op)));
      }
    }
  }
  const Tensor* tensor = part_of(call);
  const std::uint64_t bytes = tensor != nullptr ? tensor->bytes() : 0;
  Counter& counter = counters_[static_cast<std::size_t>(call.op)];
  ++counter.calls;
  counter.bytes += bytes_sent(call.op, bytes, size_, call.root == rank_);
}

std::uint64_t ProcessGroup::note(const Collective& call) noexcept {
  if (options_.flight == nullptr) return 0;
  FlightEntry entry;
  entry.sequence = calls_++;
  entry.peer = call.root;
  entry.ranks = static_cast<std::uint32_t>(size_);
  set_text(entry.op, name_of(call.op));
  if (const Tensor* part = part_of(call); part != nullptr && part->defined()) {
    entry.count = static_cast<std::uint64_t>(part->numel());
    set_text(entry.dtype, name_of(part->dtype()));
  }
  set_text(entry.group, name());
  std::memcpy(entry.action, action_.label.data(), sizeof entry.action);
  return options_.flight->called(entry);
}

Work ProcessGroup::submit(std::span<Collective> calls) {
  for (Collective& call : calls) {
    admit(call);
    call.flight = note(call);
  }
  return start_all(calls, action_);
}

// The queue runs in order, so the last one to end is the last one pushed; an error kills the group and reaches it too.
Work ProcessGroup::start_all(std::span<const Collective> calls, const CommAction& action) {
  Work last;
  for (const Collective& call : calls) {
    if (queue_) {
      last = queue_->push(call, action);
    } else {
      run(call, action);
      if (options_.flight != nullptr) options_.flight->finished(call.flight);
    }
  }
  return last;
}

namespace {

// A message of a backend that does not note ends itself.
class NotedMessage final : public Work::State {
 public:
  NotedMessage(Work message, FlightRecorder& flight, std::uint64_t number)
      : message_(std::move(message)), flight_(flight), number_(number) {}
  bool done() override { return noted(message_.done()); }
  bool wait_until(Deadline deadline) override { return noted(message_.wait_until(deadline)); }

 private:
  bool noted(bool ended) {
    if (ended) flight_.finished(std::exchange(number_, 0));
    return ended;
  }
  Work message_;
  FlightRecorder& flight_;
  std::uint64_t number_;
};

}  // namespace

Work ProcessGroup::start_message(CommOp op, const Tensor& tensor, int peer, std::uint32_t tag) {
  Collective call{.op = op, .root = peer, .tag = tag};
  (op == CommOp::send ? call.input : call.output) = &tensor;
  admit(call);
  call.flight = note(call);
  const Work work = start(call, action_);
  if (call.flight == 0 || notes_ends()) return work;
  return Work(std::make_shared<NotedMessage>(work, *options_.flight, call.flight));
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

void ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op) { all_reduce_async(tensor, op).wait(); }
void ProcessGroup::reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op) {
  reduce_scatter_async(output, input, op).wait();
}
void ProcessGroup::all_gather(const Tensor& output, const Tensor& input) { all_gather_async(output, input).wait(); }
void ProcessGroup::broadcast(const Tensor& tensor, int root) { broadcast_async(tensor, root).wait(); }
void ProcessGroup::reduce(const Tensor& tensor, int root, ReduceOp op) { reduce_async(tensor, root, op).wait(); }
void ProcessGroup::gather(const Tensor& output, const Tensor& input, int root) {
  submit(from_to(CommOp::gather, output, input, root)).wait();
}
void ProcessGroup::scatter(const Tensor& output, const Tensor& input, int root) {
  submit(from_to(CommOp::scatter, output, input, root)).wait();
}
void ProcessGroup::all_to_all(const Tensor& output, const Tensor& input) { all_to_all_async(output, input).wait(); }
void ProcessGroup::barrier() { submit({.op = CommOp::barrier}).wait(); }

void ProcessGroup::send(const Tensor& tensor, int destination, std::uint32_t tag) {
  send_async(tensor, destination, tag).wait();
}
void ProcessGroup::recv(const Tensor& tensor, int source, std::uint32_t tag) { recv_async(tensor, source, tag).wait(); }

void ProcessGroup::all_reduce(std::span<const Tensor> tensors, ReduceOp op) { all_reduce_async(tensors, op).wait(); }
void ProcessGroup::broadcast(std::span<const Tensor> tensors, int root) {
  std::vector<Collective> calls;
  for (const Tensor& tensor : tensors) calls.push_back(in_place(CommOp::broadcast, tensor, root));
  submit(calls).wait();
}
void ProcessGroup::reduce_scatter(std::span<const Tensor> outputs, std::span<const Tensor> inputs, ReduceOp op) {
  check_spans(outputs.size(), inputs.size());
  std::vector<Collective> calls;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    calls.push_back(from_to(CommOp::reduce_scatter, outputs[i], inputs[i], -1, op));
  submit(calls).wait();
}
void ProcessGroup::all_gather(std::span<const Tensor> outputs, std::span<const Tensor> inputs) {
  check_spans(outputs.size(), inputs.size());
  std::vector<Collective> calls;
  for (std::size_t i = 0; i < outputs.size(); ++i) calls.push_back(from_to(CommOp::all_gather, outputs[i], inputs[i]));
  submit(calls).wait();
}

Work ProcessGroup::all_reduce_async(const Tensor& tensor, ReduceOp op) {
  return submit(in_place(CommOp::all_reduce, tensor, -1, op));
}
Work ProcessGroup::all_reduce_async(std::span<const Tensor> tensors, ReduceOp op) {
  std::vector<Collective> calls;
  for (const Tensor& tensor : tensors) calls.push_back(in_place(CommOp::all_reduce, tensor, -1, op));
  return submit(calls);
}
Work ProcessGroup::reduce_scatter_async(const Tensor& output, const Tensor& input, ReduceOp op) {
  return submit(from_to(CommOp::reduce_scatter, output, input, -1, op));
}
Work ProcessGroup::all_gather_async(const Tensor& output, const Tensor& input) {
  return submit(from_to(CommOp::all_gather, output, input));
}
Work ProcessGroup::broadcast_async(const Tensor& tensor, int root) {
  return submit(in_place(CommOp::broadcast, tensor, root));
}
Work ProcessGroup::reduce_async(const Tensor& tensor, int root, ReduceOp op) {
  return submit(in_place(CommOp::reduce, tensor, root, op));
}
Work ProcessGroup::all_to_all_async(const Tensor& output, const Tensor& input) {
  return submit(from_to(CommOp::all_to_all, output, input));
}
Work ProcessGroup::send_async(const Tensor& tensor, int destination, std::uint32_t tag) {
  return start_message(CommOp::send, tensor, destination, tag);
}
Work ProcessGroup::recv_async(const Tensor& tensor, int source, std::uint32_t tag) {
  return start_message(CommOp::recv, tensor, source, tag);
}

}  // namespace dtrun::runtime
