#include "worker_runtime/worker/session.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <new>
#include <set>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/client/tcp_store.hpp"
#include "rendezvous/store/prefix_store.hpp"
#include "worker_runtime/comm/gather_values.hpp"
#include "worker_runtime/comm/single_group.hpp"
#include "worker_runtime/ops/cpu_level.hpp"
#include "worker_runtime/ops/threads.hpp"
#include "worker_runtime/worker/device_choice.hpp"
#include "worker_runtime/worker/error_file.hpp"
#include "worker_runtime/worker/memory_need.hpp"

namespace dtrun::runtime {
namespace {

// As it travels between ranks.
struct PlaceRecord {
  std::array<char, 248> host;
  std::array<char, 256> device;
  std::int32_t pid;
  std::int32_t local_rank;
  std::int32_t group_rank;
  std::int32_t reserved;
};

std::shared_ptr<rendezvous::TcpStore> open_line(const WorkerEnvironment& place, std::chrono::milliseconds timeout) {
  return std::make_shared<rendezvous::TcpStore>(rendezvous::TcpStoreOptions{
      .host = place.master_addr, .port = place.master_port, .timeout = timeout, .world_size = std::nullopt});
}

// A launcher may keep its store over restarts; keys of an earlier attempt must not be seen.
std::string prefix_of_attempt(const WorkerEnvironment& place) {
  return fmt::format("dtrun-worker/attempt_{}", place.restart_count);
}

std::unique_ptr<ProcessGroup> connect(const WorkerEnvironment& place, const SessionOptions& options,
                                      const GroupOptions& group_options) {
  if (place.world_size == 1) return create_single_group(group_options);
  const auto tcp = open_line(place, options.timeout);
  const auto store = std::make_shared<rendezvous::PrefixStore>(prefix_of_attempt(place), tcp);
  GroupOptions reachable = group_options;
  reachable.several_hosts = place.local_world_size != place.world_size;
  reachable.local_address = tcp->local_address();
  return create_process_group(options.backend, store, place.rank, place.world_size, reachable);
}

}  // namespace

Session::Session(WorkerEnvironment environment, const SessionOptions& options, std::unique_ptr<Device> device)
    : environment_(std::move(environment)),
      timeout_(options.timeout),
      threads_(ops::default_num_threads(environment_.local_world_size)),
      flight_(environment_.flight_record, environment_.rank),
      device_(std::move(device)) {
  ops::set_num_threads(threads_);
  GroupOptions group_options;
  group_options.timeout = options.timeout;
  group_options.account = &account_;
  group_options.device = device_.get();
  group_options.flight = &flight_;
  group_options.comm_thread = options.comm_thread;
  group_ = connect(environment_, options, group_options);
}

std::shared_ptr<rendezvous::Store> Session::open_store(std::string_view purpose) const {
  if (environment_.world_size == 1) return nullptr;
  return std::make_shared<rendezvous::PrefixStore>(fmt::format("{}/{}", prefix_of_attempt(environment_), purpose),
                                                   open_line(environment_, timeout_));
}

std::vector<RankPlace> Session::places() {
  PlaceRecord record{};
  ::gethostname(record.host.data(), record.host.size() - 1);
  record.pid = ::getpid();
  record.local_rank = environment_.local_rank;
  record.group_rank = environment_.group_rank;
  device_text(device_.get()).copy(record.device.data(), record.device.size() - 1);
  group_->set_action("map of ranks");
  std::vector<RankPlace> places;
  for (auto& place : gather_values(*group_, record)) {
    place.host.back() = place.device.back() = '\0';
    places.push_back({place.host.data(), place.device.data(), place.pid, place.local_rank, place.group_rank});
  }
  return places;
}

void Session::print_map() {
  const auto all = places();
  if (!is_first()) return;
  std::set<std::pair<std::string, int>> hosts;  // names need not differ
  for (const auto& place : all) hosts.emplace(place.host, place.group_rank);
  fmt::print("{} on {}, {} each, {}{}\n", counted(all.size(), "rank"), counted(hosts.size(), "host"),
             counted(threads_, "thread"),
             device_ ? "device " + device_->kind() : fmt::format("CPU kernels {}", ops::name_of(ops::cpu_level())),
             all.size() == 1 ? std::string() : fmt::format(", collectives over {}", group_->backend()));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto device = device_ ? ", " + all[rank].device : std::string();
    fmt::print("  rank {:<4} {} local rank {} pid {}{}\n", rank, all[rank].host, all[rank].local_rank, all[rank].pid,
               device);
  }
  std::fflush(stdout);
}

void with_session(const WorkerEnvironment& environment, const SessionOptions& options, std::unique_ptr<Device> device,
                  const std::function<void(Session&)>& job) {
  Session session(environment, options, std::move(device));
  try {
    try {
      job(session);
    } catch (const std::bad_alloc&) {
      throw MemoryError("worker",
                        fmt::format("out of memory; this rank holds {}", text_of(session.account().currents())));
    }
  } catch (const std::exception& error) {
    report_to_launcher(error);
    throw;
  }
}

}  // namespace dtrun::runtime
