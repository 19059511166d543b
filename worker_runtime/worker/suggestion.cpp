#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "worker_runtime/worker/train_config.hpp"

namespace dtrun::runtime {
namespace {

// Levenshtein distance.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

std::string suggestion(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string* best = nullptr;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const auto& candidate : candidates) {
    // A word that begins or ends the other is near, however long the rest is.
    const bool part = word.size() >= 4 && (candidate.starts_with(word) || candidate.ends_with(word));
    const auto far = part ? 1 : distance(word, candidate);
    if (far < least) {
      least = far;
      best = &candidate;
    }
  }
  return best == nullptr ? std::string() : fmt::format(" (did you mean \"{}\"?)", *best);
}

}  // namespace dtrun::runtime
