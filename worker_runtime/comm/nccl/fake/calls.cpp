// Groups and verbs of the fake's table.
#include <algorithm>
#include <utility>

#include "worker_runtime/comm/nccl/errors.hpp"
#include "worker_runtime/comm/nccl/fake/operations.hpp"
#include "worker_runtime/comm/nccl/fake/world.hpp"

namespace dtrun::runtime::nccl::fake {

namespace {

// What a thread has called since group_start.
struct Group {
  struct Item {
    std::shared_ptr<FakeComm> comm;
    StreamHandle stream;
    Request request;
  };
  int depth = 0;
  Result error = success;
  std::vector<Item> items;
};
thread_local Group group;

std::size_t bytes_of(const Request& request) {
  DType dtype{};
  dtype_of(request.type, dtype);
  return request.count * size_of(dtype);
}

std::vector<cuda::Access> accesses_of(const FakeComm& comm, const Request& request) {
  const std::size_t bytes = bytes_of(request), all = bytes * static_cast<std::size_t>(comm.size());
  const auto* send = static_cast<const std::byte*>(request.send);
  const auto* recv = static_cast<const std::byte*>(request.recv);
  const bool is_root = request.root == comm.rank();
  switch (request.verb) {
    case Verb::all_reduce:
      return {{send, bytes, false}, {recv, bytes, true}};
    case Verb::reduce:
      if (!is_root) return {{send, bytes, false}};
      return {{send, bytes, false}, {recv, bytes, true}};
    case Verb::broadcast:
      if (!is_root) return {{recv, bytes, true}};
      return {{send, bytes, false}, {recv, bytes, true}};
    case Verb::all_gather:
      return {{send, bytes, false}, {recv, all, true}};
    case Verb::reduce_scatter:
      return {{send, all, false}, {recv, bytes, true}};
    case Verb::send:
      return {{send, bytes, false}};
    case Verb::recv:
      break;
  }
  return {{recv, bytes, true}};
}

// The operations of one stream are one operation of the device: all go on together.
Result enqueue(const std::vector<Group::Item>& items, StreamHandle stream) {
  runtime::fake::FakeOperation operation;
  std::vector<std::shared_ptr<FakeTask>> tasks;
  std::vector<std::shared_ptr<FakeComm>> comms;
  for (const auto& [comm, on, request] : items) {
    if (on != stream) continue;
    if (operation.name.empty()) operation.name = std::string(fake::name_of(request.verb)) + " of " + comm->name();
    for (const auto& access : accesses_of(*comm, request)) operation.accesses.push_back(access);
    tasks.push_back(make_task(comm, request));
    comm->begun();
    comms.push_back(comm);
  }
  operation.poll = [tasks, comms] {
    bool ended = true;
    for (const auto& task : tasks) ended = task->poll() == Poll::done && ended;
    if (!ended) return Poll::again;
    for (const auto& comm : comms) comm->ended();
    return Poll::done;
  };
  return runtime::fake::enqueue(stream, std::move(operation)) == cuda::kSuccess ? success : unhandled_cuda_error;
}

Result group_start() {
  ++group.depth;
  return success;
}

Result group_end() {
  if (group.depth == 0) return invalid_usage;
  if (--group.depth > 0) return success;
  auto items = std::exchange(group.items, {});
  if (const Result error = std::exchange(group.error, success); error != success) return error;
  std::vector<StreamHandle> streams;
  for (const auto& item : items) {
    if (std::ranges::find(streams, item.stream) == streams.end()) streams.push_back(item.stream);
  }
  Result result = success;
  for (const StreamHandle stream : streams) {
    const auto first = std::ranges::find(items, stream, &Group::Item::stream);
    const Result launched = first->comm->launch([items, stream] { return enqueue(items, stream); });
    if (result == success || is_error(launched)) result = launched;
  }
  return result;
}

Result refuse(Result error) {
  if (group.depth > 0) group.error = error;
  return error;
}

Result call(Comm comm, StreamHandle stream, const Request& request) {
  const auto found = find(comm);
  DType dtype{};
  if (!found || !dtype_of(request.type, dtype) || request.op < Op::sum || request.op > Op::avg)
    return refuse(invalid_argument);
  if (!found->ready()) return refuse(invalid_usage);
  if (found->failed()) return refuse(found->state());
  const bool message = request.verb == Verb::send || request.verb == Verb::recv;
  const bool rooted = message || request.verb == Verb::reduce || request.verb == Verb::broadcast;
  if (rooted && (request.root < 0 || request.root >= found->size())) return refuse(invalid_argument);
  if (message && request.root == found->rank()) return refuse(invalid_usage);
  if (request.count == 0) return success;
  group_start();
  group.items.push_back({found, stream, request});
  return group_end();
}

Result all_reduce(const void* send, void* recv, std::size_t count, DataType type, Op op, Comm comm,
                  StreamHandle stream) {
  return call(comm, stream, {Verb::all_reduce, send, recv, count, type, op});
}
Result broadcast(const void* send, void* recv, std::size_t count, DataType type, int root, Comm comm,
                 StreamHandle stream) {
  return call(comm, stream, {Verb::broadcast, send, recv, count, type, Op::sum, root});
}
Result reduce(const void* send, void* recv, std::size_t count, DataType type, Op op, int root, Comm comm,
              StreamHandle stream) {
  return call(comm, stream, {Verb::reduce, send, recv, count, type, op, root});
}
Result all_gather(const void* send, void* recv, std::size_t count, DataType type, Comm comm, StreamHandle stream) {
  return call(comm, stream, {Verb::all_gather, send, recv, count, type});
}
Result reduce_scatter(const void* send, void* recv, std::size_t count, DataType type, Op op, Comm comm,
                      StreamHandle stream) {
  return call(comm, stream, {Verb::reduce_scatter, send, recv, count, type, op});
}
Result send(const void* data, std::size_t count, DataType type, int peer, Comm comm, StreamHandle stream) {
  return call(comm, stream, {Verb::send, data, nullptr, count, type, Op::sum, peer});
}
Result recv(void* data, std::size_t count, DataType type, int peer, Comm comm, StreamHandle stream) {
  return call(comm, stream, {Verb::recv, nullptr, data, count, type, Op::sum, peer});
}

}  // namespace

void fill_calls(NcclApi& api) {
  api.all_reduce = all_reduce;
  api.broadcast = broadcast;
  api.reduce = reduce;
  api.all_gather = all_gather;
  api.reduce_scatter = reduce_scatter;
  api.send = send;
  api.recv = recv;
  api.group_start = group_start;
  api.group_end = group_end;
}

}  // namespace dtrun::runtime::nccl::fake
