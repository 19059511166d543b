// Byte pair encoding of one word: the bytes of a word are tokens, and neighbours become one token in the order of the
// merges (Sennrich, Haddow, Birch 2016; over bytes as in GPT-2).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dtrun::runtime {

// A value; any thread. Time of a word of n bytes: n log n.
class BytePairs {
 public:
  struct Merge {
    std::int32_t rank = 0;  // the lowest is first
    std::int32_t token = 0;
  };
  // The tokens of single bytes.
  explicit BytePairs(const std::array<std::int32_t, 256>& bytes) : bytes_(bytes) {}
  // False: there is one of this pair already.
  bool add(std::int32_t left, std::int32_t right, Merge merge);
  // Appends the tokens of the word. Of equal pairs the leftmost is first.
  void encode(std::string_view word, std::vector<std::int32_t>& tokens) const;

 private:
  const Merge* find(std::int32_t left, std::int32_t right) const;
  void encode_short(std::vector<std::int32_t>& word) const;
  void encode_long(std::vector<std::int32_t>& word) const;

  std::array<std::int32_t, 256> bytes_;
  std::unordered_map<std::uint64_t, Merge> merges_;
};

}  // namespace dtrun::runtime
