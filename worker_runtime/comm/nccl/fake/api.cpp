// Communicators in the fake's table, and the table.
#include <algorithm>
#include <utility>

#include "worker_runtime/comm/nccl/fake/world.hpp"
#include "worker_runtime/device/fake/fake_cuda.hpp"

namespace dtrun::runtime::nccl::fake {

World& world() {
  static World all;
  return all;
}

std::shared_ptr<FakeComm> find(Comm comm) {
  const std::lock_guard lock(world().mutex);
  const auto found = world().comms.find(comm);
  return found == world().comms.end() ? nullptr : found->second;
}

Comm add(const std::shared_ptr<FakeComm>& comm) {
  const std::lock_guard lock(world().mutex);
  world().comms.emplace(comm.get(), comm);
  return comm.get();
}

std::shared_ptr<FakeComm> take(Comm comm) {
  const std::lock_guard lock(world().mutex);
  const auto found = world().comms.find(comm);
  if (found == world().comms.end()) return nullptr;
  auto taken = std::move(found->second);
  world().comms.erase(found);
  return taken;
}

namespace {

std::string name_in(const Config* config) {
  return config != nullptr && config->comm_name != nullptr ? config->comm_name : "";
}

Result get_version(int* version) {
  *version = world().config.version;
  return success;
}

Result get_unique_id(UniqueId* id) {
  const Origin origin = make_segment();
  *id = id_of(origin);
  return origin.fd < 0 ? system_error : success;
}

Result comm_init_rank_config(Comm* comm, int ranks, UniqueId id, int rank, Config* config) {
  if (ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks) return invalid_argument;
  if (config == nullptr || config->magic != 0xcafebeef || config->blocking != 0) return invalid_argument;
  auto made = std::make_shared<FakeComm>(world().config, name_in(config), ranks, rank);
  if (!made->attach(origin_of(id))) return system_error;
  *comm = add(made);
  return in_progress;
}

Result comm_split(Comm comm, int color, int key, Comm* child, Config* config) {
  const auto parent = find(comm);
  if (!parent || !parent->ready()) return invalid_argument;
  *child = nullptr;
  parent->begin_split(color, key, name_in(config), [child](const std::shared_ptr<FakeComm>& made) {
    std::atomic_ref(*child).store(add(made), std::memory_order_release);
  });
  return in_progress;
}

Result comm_finalize(Comm comm) {
  const auto found = find(comm);
  if (!found) return invalid_argument;
  found->finalize();
  return found->state();
}

Result comm_destroy(Comm comm) {
  const auto taken = take(comm);
  if (!taken) return invalid_argument;
  taken->abort();  // what still waits would wait for ever
  const std::lock_guard lock(world().mutex);
  world().leaked_registrations += static_cast<std::size_t>(std::max<std::int64_t>(taken->registrations.load(), 0));
  return success;
}

Result comm_abort(Comm comm) {
  const auto taken = take(comm);
  if (!taken) return invalid_argument;
  if (taken->fault_of(FaultKind::abort_hangs) != nullptr) {
    std::unique_lock lock(world().mutex);
    ++world().hanging;
    world().released.wait(lock, [] { return world().hangs_released; });
    --world().hanging;
    world().released.notify_all();
  }
  taken->abort();
  return success;
}

Result comm_get_async_error(Comm comm, Result* error) {
  const auto found = find(comm);
  if (!found) return invalid_argument;
  *error = found->state();
  return success;
}

Result comm_register(Comm comm, void* data, std::size_t, void** handle) {
  const auto found = find(comm);
  if (!found) return invalid_argument;
  ++found->registrations;
  *handle = data;
  return success;
}

Result comm_deregister(Comm comm, void*) {
  const auto found = find(comm);
  if (!found) return invalid_argument;
  --found->registrations;
  return success;
}

Result mem_alloc(void** data, std::size_t bytes) {
  return runtime::fake::cuda_api().malloc(data, bytes) == cuda::kSuccess ? success : unhandled_cuda_error;
}
Result mem_free(void* data) {
  return runtime::fake::cuda_api().free(data) == cuda::kSuccess ? success : unhandled_cuda_error;
}

const char* get_error_string(Result result) {
  switch (result) {
    case success:
      return "no error";
    case unhandled_cuda_error:
      return "unhandled cuda error";
    case system_error:
      return "unhandled system error";
    case internal_error:
      return "internal error";
    case invalid_argument:
      return "invalid argument";
    case invalid_usage:
      return "invalid usage";
    case remote_error:
      return "remote process exited or there was a network error";
    case in_progress:
      return "operation in progress";
  }
  return "unknown result code";
}

const char* get_last_error(Comm comm) {
  thread_local std::string text;
  const auto found = find(comm);
  text = found ? found->last_error() : std::string();
  return text.c_str();
}

NcclApi table(const FakeNcclConfig& config) {
  NcclApi api{.get_version = get_version,
              .get_unique_id = get_unique_id,
              .comm_init_rank_config = comm_init_rank_config,
              .comm_split = config.has_split ? comm_split : nullptr,
              .comm_finalize = comm_finalize,
              .comm_destroy = comm_destroy,
              .comm_abort = comm_abort,
              .comm_get_async_error = comm_get_async_error,
              .comm_register = config.has_memory ? comm_register : nullptr,
              .comm_deregister = config.has_memory ? comm_deregister : nullptr,
              .mem_alloc = config.has_memory ? mem_alloc : nullptr,
              .mem_free = config.has_memory ? mem_free : nullptr,
              .all_reduce = nullptr,
              .broadcast = nullptr,
              .reduce = nullptr,
              .all_gather = nullptr,
              .reduce_scatter = nullptr,
              .send = nullptr,
              .recv = nullptr,
              .group_start = nullptr,
              .group_end = nullptr,
              .get_error_string = get_error_string,
              .get_last_error = get_last_error};
  fill_calls(api);
  return api;
}

void configure(World& all, FakeNcclConfig config) {
  all.config = std::move(config);
  all.api = table(all.config);
  all.configured = true;
  all.hangs_released = false;
  all.leaked_registrations = 0;
}

}  // namespace

void install(FakeNcclConfig config) {
  const std::lock_guard lock(world().mutex);
  configure(world(), std::move(config));
}

const NcclApi& nccl_api() {
  const std::lock_guard lock(world().mutex);
  if (!world().configured) configure(world(), FakeNcclConfig::from_environment());
  return world().api;
}

void release_hangs() {
  std::unique_lock lock(world().mutex);
  world().hangs_released = true;
  world().released.notify_all();
  world().released.wait(lock, [] { return world().hanging == 0; });
}

Leaks leaks() {
  const std::lock_guard lock(world().mutex);
  Leaks result{.communicators = world().comms.size(), .registrations = world().leaked_registrations};
  for (const auto& [handle, comm] : world().comms)
    result.registrations += static_cast<std::size_t>(std::max<std::int64_t>(comm->registrations.load(), 0));
  result.ids = kept_segments();
  return result;
}

}  // namespace dtrun::runtime::nccl::fake
