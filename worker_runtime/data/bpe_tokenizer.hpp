// GPT-2's byte-level BPE: text to tokens and back, from the files vocab.json and merges.txt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "worker_runtime/data/byte_pairs.hpp"
#include "worker_runtime/data/pretokenizer.hpp"

namespace dtrun::runtime {

// Any bytes can be encoded, and decode(encode(x)) = x. Names of special tokens in a text are text. One thread at a
// time: it remembers the tokens of frequent words.
class BpeTokenizer {
 public:
  // Throws UsageError naming file, and line or token: no such files, not what vocab.json and merges.txt are, a byte
  // without a token, a merge of or into something that is no token.
  static BpeTokenizer from_directory(const std::filesystem::path& directory);

  // The largest token and one.
  std::int64_t vocab_size() const noexcept { return static_cast<std::int64_t>(bytes_of_.size()); }
  // Appends the tokens of the text.
  void encode(std::string_view text, std::vector<std::int32_t>& tokens);
  std::vector<std::int32_t> encode(std::string_view text);
  // The same for a text of any size, piece by piece (for_pieces): memory is that of a piece.
  void encode_pieces(std::string_view text, const std::function<void(std::span<const std::int32_t>)>& tokens);
  // Throws UsageError for a number that is no token.
  std::string decode(std::span<const std::int32_t> tokens) const;

 private:
  BpeTokenizer(BytePairs pairs, std::vector<std::string> bytes_of)
      : pairs_(std::move(pairs)), bytes_of_(std::move(bytes_of)) {}

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>()(text); }
  };
  BytePairs pairs_;
  std::vector<std::string> bytes_of_;  // by token; empty: no token has this number
  Pretokenizer words_;
  std::unordered_map<std::string, std::vector<std::int32_t>, Hash, std::equal_to<>> known_words_;
};

}  // namespace dtrun::runtime
