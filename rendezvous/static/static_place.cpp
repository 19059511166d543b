#include "rendezvous/static/static_place.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "rendezvous/base/error.hpp"
#include "rendezvous/store/key_text.hpp"

namespace dtrun::rendezvous {
namespace {

using nlohmann::json;

constexpr int kMostSlots = 1 << 20;
constexpr int kMostRanks = 1 << 30;
constexpr std::size_t kLongestText = 4096;

[[noreturn]] void nonsense(int node, std::string_view what, std::string_view text) {
  throw RendezvousError("rendezvous", fmt::format("the {} of node {} is {}, expected what torchrun or dtrun writes",
                                                  what, node, quoted(text.substr(0, 200))));
}

json parse(int node, std::string_view what, std::string_view text) {
  auto value = text.size() <= kLongestText ? json::parse(text, nullptr, false) : json();
  if (value.is_discarded() || value.is_null()) nonsense(node, what, text);
  return value;
}

std::optional<int> integer(const json& value, int least, int most) {
  if (!value.is_number_integer() || value < least || value > most) return std::nullopt;
  return value.get<int>();
}

}  // namespace

std::vector<StaticPlace> assign_places(std::span<const RoleInfo> nodes) {
  std::map<std::string_view, int> of_role;
  std::vector<StaticPlace> places;
  int world = 0;
  for (const auto& info : nodes) {
    auto& role = of_role[info.role];
    auto& place = places.emplace_back();
    place.node = static_cast<int>(places.size()) - 1;
    place.nodes = static_cast<int>(nodes.size());
    place.first_rank = world;
    place.first_role_rank = role;
    world += info.slots;
    role += info.slots;
  }
  for (auto& place : places) {
    place.world_size = world;
    place.role_world_size = of_role[nodes[static_cast<std::size_t>(place.node)].role];
  }
  return places;
}

std::string write_role_info(int node, const RoleInfo& info) {
  return fmt::format(R"({{"role": {}, "rank": {}, "local_world_size": {}}})",
                     json(info.role).dump(-1, ' ', true, json::error_handler_t::replace), node, info.slots);
}

std::string write_place(const StaticPlace& place) {
  return fmt::format("[{}, {}, {}, {}]", place.first_rank, place.world_size, place.first_role_rank,
                     place.role_world_size);
}

RoleInfo read_role_info(int node, std::string_view text) {
  const auto value = parse(node, "role", text);
  if (!value.is_object() || !value.contains("role") || !value["role"].is_string() || !value.contains("rank") ||
      value["rank"] != node || !value.contains("local_world_size")) {
    nonsense(node, "role", text);
  }
  const auto slots = integer(value["local_world_size"], 1, kMostSlots);
  if (!slots) nonsense(node, "role", text);
  return {value["role"].get<std::string>(), *slots};
}

StaticPlace read_place(int node, int nodes, std::string_view text) {
  const auto value = parse(node, "ranks", text);
  int numbers[4] = {};
  bool good = value.is_array() && value.size() == 4;
  for (std::size_t i = 0; good && i < 4; ++i) {
    const auto number = integer(value[i], 0, kMostRanks);
    good = number.has_value();
    numbers[i] = number.value_or(0);
  }
  if (!good || numbers[0] >= numbers[1] || numbers[2] >= numbers[3]) nonsense(node, "ranks", text);
  return {node, nodes, numbers[0], numbers[1], numbers[2], numbers[3]};
}

}  // namespace dtrun::rendezvous
