#include "rendezvous/membership/rank_order.hpp"

#include <algorithm>

namespace dtrun::rendezvous {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes the digits at the front off, without leading zeros.
std::string_view take_number(std::string_view& text) {
  std::size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  auto number = text.substr(0, end);
  text.remove_prefix(end);
  number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
  return number;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  const auto whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const auto x = take_number(a), y = take_number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      continue;
    }
    if (a.front() != b.front()) return a.front() < b.front();
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;
}

std::vector<std::uint64_t> rank_order(const std::vector<std::uint64_t>& before, std::vector<Candidate> here,
                                      std::size_t limit) {
  const bool ranked = !here.empty() &&
                      std::all_of(here.begin(), here.end(), [](const Candidate& c) { return c.node_rank.has_value(); });
  std::stable_sort(here.begin(), here.end(), [&](const Candidate& a, const Candidate& b) {
    if (ranked && a.node_rank != b.node_rank) return *a.node_rank < *b.node_rank;
    if (a.node != b.node) return natural_less(a.node, b.node);
    return a.agent < b.agent;
  });
  std::vector<std::uint64_t> order;
  if (ranked) {
    for (const auto& candidate : here) {
      if (order.size() < limit) order.push_back(candidate.agent);
    }
    return order;
  }
  const auto present = [&](std::uint64_t agent) {
    return std::any_of(here.begin(), here.end(), [&](const Candidate& c) { return c.agent == agent; });
  };
  std::vector<std::uint64_t> newcomers;
  for (const auto& candidate : here) {
    if (std::find(before.begin(), before.end(), candidate.agent) == before.end()) newcomers.push_back(candidate.agent);
  }
  auto next = newcomers.begin();
  for (const auto agent : before) {
    if (present(agent)) {
      order.push_back(agent);
    } else if (next != newcomers.end()) {
      order.push_back(*next++);
    }
  }
  order.insert(order.end(), next, newcomers.end());
  if (order.size() > limit) order.resize(limit);
  return order;
}

}  // namespace dtrun::rendezvous
