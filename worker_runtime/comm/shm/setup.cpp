// How the ranks of a ShmGroup find each other: each publishes an Address in the store, maps the others, and meets them
// once.
#include <fmt/format.h>

#include <cstring>
#include <set>

#include "rendezvous/base/error.hpp"
#include "rendezvous/store/store.hpp"
#include "worker_runtime/comm/shm/shm_group.hpp"
#include "worker_runtime/comm/split.hpp"

namespace dtrun::runtime::shm {

namespace {

Address await_address(rendezvous::Store& store, const std::string& prefix, int other, const Deadline& deadline,
                      const GroupOptions& options) {
  const std::string key = fmt::format("{}{}", prefix, other);
  try {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    return Address::decode(store.get(key, std::max(left, std::chrono::milliseconds(1))));
  } catch (const TimeoutError&) {
    throw CommError(
        "comm", fmt::format("group \"{}\": rank {} did not come within {} s (store key \"{}\")", options.name, other,
                            std::chrono::duration<double>(options.timeout).count(), key));
  }
}

}  // namespace

std::unique_ptr<ProcessGroup> create_shm_group(rendezvous::Store& store, int rank, int size,
                                               const GroupOptions& options) {
  if (size > kMaxRanks)
    throw UsageError("comm", fmt::format("{} ranks on one host, expected at most {}", size, kMaxRanks));
  const Deadline deadline = Deadline::after(options.timeout);
  const std::string prefix = fmt::format("dtrun/shm/{}/", options.name);
  auto domain = std::make_shared<Domain>();
  domain->rank = rank;
  domain->pool = Pool::create();
  domain->peers.resize(static_cast<std::size_t>(size));
  std::vector<int> members;
  std::vector<Control*> controls(static_cast<std::size_t>(size));
  Control* own = make_control(*domain->pool, size);
  const Address mine =
      Address::of(*domain->pool, domain->pool->find(reinterpret_cast<std::byte*>(own), control_bytes(size)));
  std::set<int> cores(mine.cores.begin(), mine.cores.end());
  store.set(fmt::format("{}{}", prefix, rank), mine.encode());
  for (int other = 0; other < size; ++other) {
    const auto index = static_cast<std::size_t>(other);
    members.push_back(other);
    controls[index] = own;
    if (other == rank) continue;
    const Address theirs = await_address(store, prefix, other, deadline, options);
    if (theirs.host != mine.host) {
      throw CommError(
          "comm",
          fmt::format("group \"{}\": rank {} runs on {} [{}] and rank {} on {} [{}]; expected one host, one pid "
                      "namespace and one user for backend shm (gloo works across hosts)",
                      options.name, rank, mine.host_name, mine.host, other, theirs.host_name, theirs.host));
    }
    cores.insert(theirs.cores.begin(), theirs.cores.end());
    domain->peers[index] = std::make_unique<Peer>(other, theirs);
    controls[index] = reinterpret_cast<Control*>(domain->peers[index]->at(theirs.control, control_bytes(size)));
  }
  // Ranks may be bound to one core each: what counts is what they have together.
  domain->spin = static_cast<int>(cores.size()) >= size * (options.comm_thread ? 2 : 1);
  auto group = std::make_unique<ShmGroup>(std::move(domain), std::move(members), std::move(controls), rank, options);
  group->barrier();  // everyone has mapped everyone: from here on a rank may finish and go
  group->reset_counters();
  return group;
}

std::unique_ptr<ProcessGroup> ShmGroup::split(std::span<const int> ranks, const std::string& split_name) {
  const int place_there = place_in_split(ranks, rank(), size(), split_name);
  const auto count = static_cast<int>(ranks.size());
  Control* own_control = ranks.empty() ? nullptr : make_control(*domain_->pool, count);
  Tensor mine = allocate({3}, DType::i64, MemoryTag::comm);
  Tensor all = allocate({size(), 3}, DType::i64, MemoryTag::comm);
  const Place place = own_control == nullptr
                          ? Place{}
                          : domain_->pool->find(reinterpret_cast<std::byte*>(own_control), control_bytes(count));
  const std::array<std::int64_t, 3> row{place.segment, static_cast<std::int64_t>(place.offset),
                                        split_hash(ranks, split_name)};
  std::memcpy(mine.raw(), row.data(), sizeof(row));
  all_gather(all, mine);
  if (ranks.empty()) return nullptr;

  std::vector<int> members;
  std::vector<Control*> controls;
  const auto rows = all.span<std::int64_t>();
  for (const int member : ranks) {
    const auto at = static_cast<std::size_t>(member) * 3;
    if (rows[at + 2] != row[2]) {
      fail(fmt::format("group \"{}\": split \"{}\": ranks {} and {} gave different lists or names", name(), split_name,
                       rank(), member));
    }
    members.push_back(members_[static_cast<std::size_t>(member)]);
    const Place theirs{static_cast<std::uint32_t>(rows[at]), static_cast<std::uint64_t>(rows[at + 1])};
    controls.push_back(
        member == rank() ? own_control : reinterpret_cast<Control*>(peer_memory(member, theirs, control_bytes(count))));
  }
  GroupOptions inner = options();
  inner.name = split_name;
  return std::make_unique<ShmGroup>(domain_, std::move(members), std::move(controls), place_there, inner);
}

}  // namespace dtrun::runtime::shm
