#include "worker_runtime/data/bpe_tokenizer.hpp"

#include <fmt/format.h>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::size_t kMostWords = 1 << 16, kLongestWord = 40;  // that are remembered

}  // namespace

void BpeTokenizer::encode(std::string_view text, std::vector<std::int32_t>& tokens) {
  words_.split(text, [&](std::string_view word) {
    if (const auto known = known_words_.find(word); known != known_words_.end()) {
      tokens.insert(tokens.end(), known->second.begin(), known->second.end());
      return;
    }
    const auto first = static_cast<std::ptrdiff_t>(tokens.size());
    pairs_.encode(word, tokens);
    if (word.size() > kLongestWord || known_words_.size() >= kMostWords) return;
    known_words_.emplace(word, std::vector<std::int32_t>(tokens.begin() + first, tokens.end()));
  });
}

std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text) {
  std::vector<std::int32_t> tokens;
  encode(text, tokens);
  return tokens;
}

void BpeTokenizer::encode_pieces(std::string_view text,
                                 const std::function<void(std::span<const std::int32_t>)>& tokens) {
  std::vector<std::int32_t> of_piece;
  for_pieces(text, [&](std::string_view piece) {
    of_piece.clear();
    encode(piece, of_piece);
    tokens(of_piece);
  });
}

std::string BpeTokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const auto token : tokens) {
    if (token < 0 || token >= vocab_size() || bytes_of_[static_cast<std::size_t>(token)].empty()) {
      throw UsageError("data", fmt::format("{} is no token of this vocabulary (0 to {})", token, vocab_size() - 1));
    }
    text += bytes_of_[static_cast<std::size_t>(token)];
  }
  return text;
}

}  // namespace dtrun::runtime
