// How the ranks of a GlooGroup find each other: through the store each learns where the others run, settles on the
// address that it is reached under, listens, publishes where, and connects. A split does the last steps through the
// group that it comes from.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "rendezvous/base/error.hpp"
#include "rendezvous/store/store.hpp"
#include "worker_runtime/comm/gloo/gloo_group.hpp"
#include "worker_runtime/comm/gloo/link.hpp"
#include "worker_runtime/comm/split.hpp"

namespace dtrun::runtime::gloo {

namespace {

std::chrono::milliseconds left(const Deadline& deadline) {
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()), std::chrono::milliseconds(1));
}

// The value of every rank under `prefix`, this one's own included.
std::vector<std::string> gather(rendezvous::Store& store, const std::string& prefix, int size, const Deadline& deadline,
                                const GroupOptions& options) {
  std::vector<std::string> values;
  for (int rank = 0; rank < size; ++rank) {
    const std::string key = fmt::format("{}{}", prefix, rank);
    try {
      values.push_back(store.get(key, left(deadline)));
    } catch (const TimeoutError&) {
      throw CommError(
          "comm", fmt::format("group \"{}\": rank {} did not come within {} s (store key \"{}\")", options.name, rank,
                              std::chrono::duration<double>(options.timeout).count(), key));
    }
  }
  return values;
}

std::string host_of(const Origin& origin, int rank) {
  return fmt::format("rank {} (pid {} on {}, address {})", rank, origin.pid, origin.host_name, origin.address);
}

// Every rank connects to the others in the same order: whoever is asked first need not have asked yet.
void connect_all(Mesh& mesh, const std::vector<std::string>& theirs, const std::vector<Origin>& origins, int rank,
                 const std::string& name) {
  for (int peer = 0; peer < static_cast<int>(origins.size()); ++peer) {
    if (peer == rank) continue;
    const auto at = static_cast<std::size_t>(peer);
    try {
      mesh.connect(peer, theirs[at]);
    } catch (const CommError& error) {
      throw CommError("comm", fmt::format("group \"{}\": {} and {}: {}", name,
                                          host_of(origins[static_cast<std::size_t>(rank)], rank),
                                          host_of(origins[at], peer), error.what()));
    }
  }
}

}  // namespace

std::unique_ptr<ProcessGroup> create_gloo_group(rendezvous::Store& store, int rank, int size,
                                                const GroupOptions& options) {
  if (size > kMaxRanks)
    throw UsageError("comm", fmt::format("{} ranks, expected at most {} for backend gloo", size, kMaxRanks));
  const Deadline deadline = Deadline::after(options.timeout);
  const std::string prefix = fmt::format("dtrun/gloo/{}/", options.name);
  const Origin mine = Origin::here(options.local_address);
  store.set(fmt::format("{}host/{}", prefix, rank), mine.encode());
  std::vector<Origin> origins;
  for (const std::string& text : gather(store, prefix + "host/", size, deadline, options))
    origins.push_back(Origin::decode(text));
  for (std::size_t i = 0; i < origins.size(); ++i) origins[i].rank = static_cast<int>(i);
  origins[static_cast<std::size_t>(rank)].address = choose_address(origins, rank);

  auto mesh = std::make_unique<Mesh>(std::make_shared<Engine>(origins[static_cast<std::size_t>(rank)].address), rank,
                                     size, left(deadline));
  store.set(fmt::format("{}listen/{}", prefix, rank), mesh->addresses());
  connect_all(*mesh, gather(store, prefix + "listen/", size, deadline, options), origins, rank, options.name);
  auto group = std::make_unique<GlooGroup>(std::move(mesh), std::move(origins), rank, options);
  group->barrier();  // everyone is connected to everyone: from here on a rank may finish and go
  group->reset_counters();
  return group;
}

std::unique_ptr<ProcessGroup> GlooGroup::split(std::span<const int> ranks, const std::string& split_name) {
  const int place = place_in_split(ranks, rank(), size(), split_name);
  const auto count = static_cast<int>(ranks.size());
  auto mesh = ranks.empty() ? nullptr : std::make_unique<Mesh>(mesh_->engine(), place, count, options().timeout);
  const auto row_bytes = static_cast<std::int64_t>(sizeof(std::int64_t) + mesh_->addresses().size());
  const Tensor mine = allocate({row_bytes}, DType::u8, MemoryTag::comm);
  const Tensor all = allocate({row_bytes * size()}, DType::u8, MemoryTag::comm);
  mine.zero();
  const std::int64_t hash = split_hash(ranks, split_name);
  std::memcpy(mine.raw(), &hash, sizeof hash);
  if (mesh) std::memcpy(mine.raw() + sizeof hash, mesh->addresses().data(), mesh->addresses().size());
  all_gather(all, mine);
  if (ranks.empty()) return nullptr;

  std::vector<std::string> theirs;
  std::vector<Origin> origins;
  for (const int member : ranks) {
    const std::byte* row = all.raw() + static_cast<std::ptrdiff_t>(member * row_bytes);
    std::int64_t other = 0;
    std::memcpy(&other, row, sizeof other);
    if (other != hash) {
      fail(fmt::format("group \"{}\": split \"{}\": ranks {} and {} gave different lists or names", name(), split_name,
                       rank(), member));
    }
    theirs.emplace_back(reinterpret_cast<const char*>(row + sizeof hash), mesh->addresses().size());
    origins.push_back(origins_[static_cast<std::size_t>(member)]);
  }
  GroupOptions inner = options();
  inner.name = split_name;
  connect_all(*mesh, theirs, origins, place, split_name);
  auto group = std::make_unique<GlooGroup>(std::move(mesh), std::move(origins), place, inner);
  group->barrier();
  group->reset_counters();
  return group;
}

}  // namespace dtrun::runtime::gloo
