// What NCCL is asked for each collective.
#include <algorithm>

#include "worker_runtime/comm/nccl/errors.hpp"
#include "worker_runtime/comm/nccl/nccl_group.hpp"
#include "worker_runtime/comm/staged_calls.hpp"

namespace dtrun::runtime::nccl {

namespace {

DataType type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return DataType::f32;
    case DType::bf16:
      return DataType::bf16;
    case DType::i32:
      return DataType::i32;
    case DType::i64:
      return DataType::i64;
    case DType::u8:
      break;
  }
  return DataType::u8;
}

Op op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return Op::sum;
    case ReduceOp::avg:
      return Op::avg;
    case ReduceOp::max:
      return Op::max;
    case ReduceOp::min:
      return Op::min;
    case ReduceOp::product:
      break;
  }
  return Op::product;
}

}  // namespace

DataType nccl_type(DType dtype) { return type_of(dtype); }

Result NcclGroup::call_nccl(const Collective& call, Comm comm, cuda::StreamHandle stream) const {
  const NcclApi& api = domain_->api();
  const Tensor& part = *part_of(call);
  const DataType type = type_of(part.dtype());
  const auto count = static_cast<std::size_t>(part.numel());
  const std::byte* input = call.input == nullptr ? nullptr : call.input->device_raw();
  std::byte* output = call.output == nullptr ? nullptr : call.output->device_raw();
  const bool is_root = call.root == rank();
  Result result = success;
  // Part `index` of `data` to or from that rank; this rank's own part was copied.
  const auto exchange = [&](bool sends, bool receives, std::size_t elements) {
    const std::size_t bytes = elements * size_of(part.dtype());
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      const std::size_t at = call.op == CommOp::gather && sends ? 0 : static_cast<std::size_t>(other) * bytes;
      if (sends && !is_error(result)) result = api.send(input + at, elements, type, other, comm, stream);
      if (receives && !is_error(result)) result = api.recv(output + at, elements, type, other, comm, stream);
    }
    return result;
  };
  switch (call.op) {
    case CommOp::all_reduce:
      return api.all_reduce(input, output, count, type, op_of(call.reduce), comm, stream);
    case CommOp::reduce_scatter:
      return api.reduce_scatter(input, output, count, type, op_of(call.reduce), comm, stream);
    case CommOp::all_gather:
      return api.all_gather(input, output, count, type, comm, stream);
    case CommOp::broadcast:
      return api.broadcast(input, output, count, type, call.root, comm, stream);
    case CommOp::reduce:  // elsewhere the tensor keeps its elements
      return api.reduce(input, is_root ? output : nullptr, count, type, op_of(call.reduce), call.root, comm, stream);
    case CommOp::gather:
      return is_root ? exchange(false, true, count) : api.send(input, count, type, call.root, comm, stream);
    case CommOp::scatter:
      return is_root ? exchange(true, false, count) : api.recv(output, count, type, call.root, comm, stream);
    case CommOp::all_to_all:
      return exchange(true, true, count / static_cast<std::size_t>(size()));
    case CommOp::barrier:
    case CommOp::send:
    case CommOp::recv:
      break;
  }
  return invalid_usage;
}

// What NCCL has no verb for is made of messages; what a rank has for itself needs none.
void NcclGroup::copy_own_part(const Collective& call, Stream& stream) const {
  const bool is_root = call.root == rank();
  if (!((call.op == CommOp::gather && is_root) || (call.op == CommOp::scatter && is_root) ||
        call.op == CommOp::all_to_all))
    return;
  std::size_t bytes = part_of(call)->bytes();
  if (call.op == CommOp::all_to_all) bytes /= static_cast<std::size_t>(size());
  const std::size_t own = static_cast<std::size_t>(rank()) * bytes;
  const std::byte* from = call.input->device_raw() + (call.op == CommOp::gather ? 0 : own);
  std::byte* to = call.output->device_raw() + (call.op == CommOp::scatter ? 0 : own);
  if (bytes == 0 || from == to) return;
  device().check(device().cuda().memcpy_async(to, from, bytes, cuda::CopyKind::device_to_device, stream.handle()),
                 "cudaMemcpyAsync");
}

void NcclGroup::run_staged(std::span<const Collective> calls, const Called& called) {
  const StagedCalls staged(calls, staging_);
  issue(reduces(calls[0].op) ? *reduce_ : *gather_, called, staged.calls(), false).wait();
  staged.copy_back(rank());
}

}  // namespace dtrun::runtime::nccl
