#include "worker_runtime/data/byte_pairs.hpp"

#include <limits>
#include <queue>
#include <tuple>

namespace dtrun::runtime {
namespace {

constexpr std::size_t kShort = 48;  // bytes: up to here a heap costs more than it saves

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

bool BytePairs::add(std::int32_t left, std::int32_t right, Merge merge) {
  return merges_.emplace(key_of(left, right), merge).second;
}

const BytePairs::Merge* BytePairs::find(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairs::encode(std::string_view word, std::vector<std::int32_t>& tokens) const {
  std::vector<std::int32_t> parts;
  parts.reserve(word.size());
  for (const char byte : word) parts.push_back(bytes_[static_cast<unsigned char>(byte)]);
  word.size() <= kShort ? encode_short(parts) : encode_long(parts);
  tokens.insert(tokens.end(), parts.begin(), parts.end());
}

void BytePairs::encode_short(std::vector<std::int32_t>& word) const {
  while (word.size() > 1) {
    const Merge* best = nullptr;
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < word.size(); ++i) {
      const auto* merge = find(word[i], word[i + 1]);
      if (merge == nullptr || (best != nullptr && best->rank <= merge->rank)) continue;
      best = merge;
      place = i;
    }
    if (best == nullptr) return;
    word[place] = best->token;
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

// The same with a heap of the pairs there are, and of some that are gone, and a list of the parts that are left.
void BytePairs::encode_long(std::vector<std::int32_t>& word) const {
  constexpr std::int32_t kGone = -1;
  using Pair = std::pair<std::int32_t, std::size_t>;  // rank, place of its left part
  std::priority_queue<Pair, std::vector<Pair>, std::greater<>> pairs;
  const auto size = word.size();
  std::vector<std::uint32_t> before(size), behind(size);
  const auto push = [&](std::size_t left) {
    if (behind[left] >= size) return;
    if (const auto* merge = find(word[left], word[behind[left]])) pairs.emplace(merge->rank, left);
  };
  for (std::size_t i = 0; i < size; ++i) {
    before[i] = static_cast<std::uint32_t>(i - 1);
    behind[i] = static_cast<std::uint32_t>(i + 1);
  }
  for (std::size_t i = 0; i < size; ++i) push(i);
  while (!pairs.empty()) {
    const auto [rank, left] = pairs.top();
    pairs.pop();
    if (word[left] == kGone || behind[left] >= size) continue;
    const std::size_t right = behind[left];
    const auto* merge = find(word[left], word[right]);
    if (merge == nullptr || merge->rank != rank) continue;
    word[left] = merge->token;
    word[right] = kGone;
    behind[left] = behind[right];
    if (behind[left] < size) before[behind[left]] = static_cast<std::uint32_t>(left);
    if (left > 0) push(before[left]);
    push(left);
  }
  std::erase(word, kGone);
}

}  // namespace dtrun::runtime
