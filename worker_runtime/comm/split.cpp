#include "worker_runtime/comm/split.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {

int place_in_split(std::span<const int> ranks, int rank, int size, const std::string& name) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (!ranks.empty() && found == ranks.end())
    throw ShapeError("comm", fmt::format("split \"{}\": rank {} is not in its own list", name, rank));
  for (const int member : ranks) {
    if (member < 0 || member >= size || std::count(ranks.begin(), ranks.end(), member) != 1) {
      throw ShapeError("comm",
                       fmt::format("split \"{}\": rank {}, expected different ranks below {}", name, member, size));
    }
  }
  return ranks.empty() ? -1 : static_cast<int>(found - ranks.begin());
}

std::int64_t split_hash(std::span<const int> ranks, const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&hash](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
  for (const int rank : ranks) add(static_cast<std::uint64_t>(rank) + 1);
  for (const char letter : name) add(static_cast<unsigned char>(letter));
  return static_cast<std::int64_t>(hash & 0x7fffffffffffffff);
}

}  // namespace dtrun::runtime
