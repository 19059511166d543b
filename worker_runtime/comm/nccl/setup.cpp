// How the ranks of a NcclGroup find each other: the ids of communicators go through the store; a split asks NCCL.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/store/store.hpp"
#include "worker_runtime/comm/nccl/errors.hpp"
#include "worker_runtime/comm/nccl/fake/fake_nccl.hpp"
#include "worker_runtime/comm/nccl/library.hpp"
#include "worker_runtime/comm/nccl/nccl_group.hpp"
#include "worker_runtime/comm/single_group.hpp"
#include "worker_runtime/comm/split.hpp"

namespace dtrun::runtime::nccl {

namespace {

constexpr int kSharedDevices = 23003;  // several ranks on one device, when asked for

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// "host", TAB, what is the same for two ranks on one device only.
std::string place_of(const Device& device) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::string boot = "?";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::string uuid;
  for (const unsigned char byte : device.properties().uuid) uuid += fmt::format("{:02x}", byte);
  return fmt::format("{}\t{}/{}", host.data(), boot, uuid);
}

// NCCL finds this too, after a while and without the numbers.
void refuse_shared_devices(const std::vector<std::string>& places, int version) {
  const char* asked = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (version >= kSharedDevices && asked != nullptr && std::string_view(asked) == "1") return;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto first = static_cast<std::size_t>(std::ranges::find(places, places[rank]) - places.begin());
    if (first == rank) continue;
    throw UsageError(
        "comm",
        fmt::format("ranks {} and {} use the same device of host {}: start one rank for each device "
                    "(--nproc-per-node=gpu){}",
                    first, rank, places[rank].substr(0, places[rank].find('\t')),
                    version >= kSharedDevices ? ", or set NCCL_MULTI_RANK_GPU_ENABLE=1"
                                              : fmt::format("; NCCL {} can share one, this is {}",
                                                            version_text(kSharedDevices), version_text(version))));
  }
}

// And where it is from.
std::pair<const NcclApi*, std::string> api_for(const GroupOptions& options) {
  if (options.nccl != nullptr) return {options.nccl, "NCCL"};
  if (options.device->kind() == "fake-cuda") return {&fake::nccl_api(), "FakeNccl"};
  return {&library().api, library().path};
}

}  // namespace

void NcclGroup::await_ready(Communicator& communicator, Deadline deadline, const std::string& what) {
  for (;;) {
    domain_->throw_if_failed();
    domain_->move();
    const Result state = communicator.state();
    if (state == success) {
      domain_->throw_if_failed();  // what was aborted is ready too
      return;
    }
    if (state != in_progress) {
      domain_->fail(fmt::format("group \"{}\": NCCL failed on rank {} in {}: {}", name(), domain_->rank(), what,
                                communicator.text_of(state)));
    }
    if (deadline.passed()) {
      domain_->fail(fmt::format("group \"{}\": rank {} waited {} s in {}", name(), domain_->rank(),
                                seconds(options().timeout), what));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void NcclGroup::connect_by_id(Channel& channel, std::string_view key, Deadline deadline) {
  UniqueId id{};
  const std::string full_key = fmt::format("{}id/{}", watched_->prefix, key);
  if (rank() == 0) {
    if (const Result result = domain_->api().get_unique_id(&id); is_error(result))
      domain_->fail(fmt::format("group \"{}\": ncclGetUniqueId: {}", name(), channel.communicator.text_of(result)));
    domain_->store().set(full_key, {id.bytes, sizeof id.bytes});
  } else {
    const std::string text = domain_->await_key(
        full_key, deadline,
        fmt::format("group \"{}\": rank 0 did not come within {} s", name(), seconds(options().timeout)));
    std::memcpy(id.bytes, text.data(), std::min(text.size(), sizeof id.bytes));
  }
  const std::string what =
      fmt::format("set-up of communicator \"{}\" ({})", channel.communicator.name(), counted(size(), "rank"));
  if (const Result result = channel.communicator.init(id, size(), rank()); is_error(result))
    domain_->fail(fmt::format("group \"{}\": {} failed: {}", name(), what, channel.communicator.text_of(result)));
  await_ready(channel.communicator, deadline, what);
}

void NcclGroup::connect(Deadline deadline) {
  connect_by_id(*gather_, "gather", deadline);
  connect_by_id(*reduce_, "reduce", deadline);
}

std::unique_ptr<ProcessGroup> create_nccl_group(std::shared_ptr<rendezvous::Store> store, int rank, int size,
                                                const GroupOptions& options) {
  const auto [api, origin] = api_for(options);
  const int version = check_version(*api, origin);
  const Deadline deadline = Deadline::after(options.timeout);
  auto watched = std::make_shared<Watched>();
  watched->name = options.name;
  watched->prefix = fmt::format("dtrun/nccl/{}/", options.name);
  watched->timeout = options.timeout;
  for (int other = 0; other < size; ++other) watched->ranks.push_back(other);
  const std::string places_prefix = watched->prefix + "place/";
  store->set(fmt::format("{}{}", places_prefix, rank), place_of(*options.device));
  const auto domain = std::make_shared<Domain>(*api, version, std::move(store), rank, options);
  std::vector<std::string> places;
  for (int other = 0; other < size; ++other) {
    places.push_back(domain->await_key(
        fmt::format("{}{}", places_prefix, other), deadline,
        fmt::format("group \"{}\": rank {} did not come within {} s", options.name, other, seconds(options.timeout))));
  }
  refuse_shared_devices(places, version);
  auto group = std::make_unique<NcclGroup>(domain, watched, rank, options);
  group->connect(deadline);
  return group;
}

std::unique_ptr<ProcessGroup> NcclGroup::split(std::span<const int> ranks, const std::string& split_name) {
  domain_->throw_if_failed();
  const int place = place_in_split(ranks, rank(), size(), split_name);
  const Deadline deadline = Deadline::after(options().timeout);
  const std::string prefix = fmt::format("{}split/{}/", watched_->prefix, ++splits_);
  const std::string mine = fmt::format("{}", split_hash(ranks, split_name));
  domain_->store().set(fmt::format("{}hash/{}", prefix, rank()), mine);
  for (const int member : ranks) {
    const std::string theirs =
        domain_->await_key(fmt::format("{}hash/{}", prefix, member), deadline,
                           fmt::format("group \"{}\": rank {} did not come to split \"{}\" within {} s", name(),
                                       job_rank(member), split_name, seconds(options().timeout)));
    if (theirs != mine) {
      domain_->fail(fmt::format("group \"{}\": split \"{}\": ranks {} and {} gave different lists or names", name(),
                                split_name, domain_->rank(), job_rank(member)));
    }
  }
  GroupOptions inner = options();
  inner.name = split_name;
  const bool by_nccl = domain_->api().comm_split != nullptr;
  const bool alone = ranks.size() < 2;  // nobody to talk to
  std::unique_ptr<NcclGroup> group;
  const int color = alone ? Communicator::kNoColor : *std::ranges::min_element(ranks);
  if (!alone) {
    auto watched = std::make_shared<Watched>();
    watched->name = split_name;
    watched->prefix = fmt::format("{}{}/", prefix, color);
    watched->timeout = options().timeout;
    for (const int member : ranks) watched->ranks.push_back(job_rank(member));
    group = std::make_unique<NcclGroup>(domain_, std::move(watched), place, inner);
    if (!by_nccl) group->connect(deadline);
  }
  for (const bool reduce : {false, true}) {
    if (!by_nccl) break;
    Communicator& parent = (reduce ? reduce_ : gather_)->communicator;
    Communicator nobody(domain_->api(), domain_->version(), split_name);
    Communicator& child = alone ? nobody : (reduce ? group->reduce_ : group->gather_)->communicator;
    const std::string what = fmt::format("split \"{}\"", split_name);
    if (const Result result = child.split(parent, color, std::max(place, 0)); is_error(result))
      domain_->fail(fmt::format("group \"{}\": {} failed: {}", name(), what, parent.text_of(result)));
    await_ready(parent, deadline, what);
    await_ready(child, deadline, what);
  }
  if (ranks.empty()) return nullptr;
  if (alone) return create_single_group(inner);
  return group;
}

}  // namespace dtrun::runtime::nccl
