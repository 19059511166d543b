// Which node comes first.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrun::rendezvous {

// Digits count as numbers: node7 < node66. Equal numbers written differently (node07, node7) differ by their text.
bool natural_less(std::string_view a, std::string_view b);

struct Candidate {
  std::uint64_t agent = 0;
  std::string node;
  std::optional<int> node_rank;
};

// The agents of a new round in the order of their ranks, at most `limit`. With node ranks given by all: by node rank.
// Else whoever was in the last round (`before`) keeps his place, free places are filled with the others in natural
// order of node names (then of arrival), the rest follows, and places that stay empty close up.
std::vector<std::uint64_t> rank_order(const std::vector<std::uint64_t>& before, std::vector<Candidate> here,
                                      std::size_t limit);

}  // namespace dtrun::rendezvous
