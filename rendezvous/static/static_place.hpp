// Who has which ranks under the static backend, and how the nodes tell each other: torchrun's JSON. No sockets.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dtrun::rendezvous {

// What a node tells node 0.
struct RoleInfo {
  std::string role;
  int slots = 1;  // workers
  bool operator==(const RoleInfo&) const = default;
};

// What a node is told.
struct StaticPlace {
  int node = 0, nodes = 1;
  int first_rank = 0, world_size = 1;
  int first_role_rank = 0, role_world_size = 1;
  bool operator==(const StaticPlace&) const = default;
};

std::vector<StaticPlace> assign_places(std::span<const RoleInfo> nodes);

std::string write_role_info(int node, const RoleInfo& info);
std::string write_place(const StaticPlace& place);
// Throw RendezvousError, naming the node, for anything else than what the two above write.
RoleInfo read_role_info(int node, std::string_view text);
StaticPlace read_place(int node, int nodes, std::string_view text);

}  // namespace dtrun::rendezvous
