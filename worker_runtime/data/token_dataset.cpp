#include "worker_runtime/data/token_dataset.hpp"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/data/bpe_tokenizer.hpp"
#include "worker_runtime/data/mapped_file.hpp"
#include "worker_runtime/data/token_file.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::int64_t kVocabularyOf16Bits = 65536;
constexpr std::size_t kFingerprintBlocks = 64, kFingerprintBlock = 4096;  // bytes

TokenFormat format_of(const std::filesystem::path& path) {
  return path.extension() == ".bin" ? TokenFormat::u16 : TokenFormat::bytes;
}

}  // namespace

TokenDataset TokenDataset::from_files(std::span<const std::filesystem::path> paths, std::int64_t seq_len,
                                      BpeTokenizer* tokenizer) {
  if (paths.empty()) throw UsageError("data", "no data files given, expected at least one");
  TokenDataset result(format_of(paths.front()), seq_len);
  for (const auto& path : paths) {
    if (format_of(path) != result.format_) {
      throw UsageError("data", fmt::format("data files \"{}\" and \"{}\": text and .bin token files cannot be mixed",
                                           paths.front().string(), path.string()));
    }
    const auto mapping = map_file(path);
    if (result.format_ == TokenFormat::bytes) {
      result.add_text(path.string(), mapping, tokenizer);
      continue;
    }
    if (tokenizer != nullptr)
      throw UsageError("data",
                       fmt::format("data file \"{}\": has tokens already, a tokenizer is for text", path.string()));
    const auto tokens = token_file(mapping, path.string());
    result.add({path.string(), mapping.owner, tokens.data, tokens.tokens, 0});
  }
  if (tokenizer != nullptr) result.be_of(*tokenizer);
  return result;
}

TokenDataset TokenDataset::from_text(std::string_view text, std::int64_t seq_len, std::string name,
                                     BpeTokenizer* tokenizer) {
  TokenDataset result(TokenFormat::bytes, seq_len);
  const MappedFile mapping{nullptr, reinterpret_cast<const std::byte*>(text.data()),
                           static_cast<std::int64_t>(text.size())};
  result.add_text(std::move(name), mapping, tokenizer);
  if (tokenizer != nullptr) result.be_of(*tokenizer);
  return result;
}

void TokenDataset::be_of(const BpeTokenizer& tokenizer) {
  format_ = tokenizer.vocab_size() <= kVocabularyOf16Bits ? TokenFormat::u16 : TokenFormat::i32;
  vocab_size_ = tokenizer.vocab_size();
}

void TokenDataset::add_text(std::string name, const MappedFile& file, BpeTokenizer* tokenizer) {
  if (tokenizer == nullptr) return add({std::move(name), file.owner, file.data, file.bytes, 0});
  const auto encoded = [&](auto type) {
    const auto tokens = std::make_shared<std::vector<decltype(type)>>();
    tokenizer->encode_pieces(file.text(), [&](std::span<const std::int32_t> piece) {
      for (const auto token : piece) tokens->push_back(static_cast<decltype(type)>(token));
    });
    tokens->shrink_to_fit();
    add({std::move(name), tokens, reinterpret_cast<const std::byte*>(tokens->data()),
         static_cast<std::int64_t>(tokens->size()), 0});
  };
  tokenizer->vocab_size() <= kVocabularyOf16Bits ? encoded(std::uint16_t{}) : encoded(std::int32_t{});
}

std::int32_t TokenDataset::token_at(const Source& source, std::size_t at) const {
  const auto byte = [&](std::size_t i) { return std::to_integer<std::int32_t>(source.data[i]); };
  switch (format_) {
    case TokenFormat::bytes:
      return byte(at);
    case TokenFormat::u16:
      return byte(2 * at) | byte(2 * at + 1) << 8;
    case TokenFormat::i32:
      break;
  }
  std::int32_t token = 0;
  std::memcpy(&token, source.data + 4 * at, sizeof token);
  return token;
}

void TokenDataset::add(Source source) {
  if (seq_len_ <= 0) throw UsageError("data", fmt::format("sequence length {}, expected at least 1", seq_len_));
  const auto samples = (source.tokens - 1) / seq_len_;
  if (source.tokens < 1 || samples < 1) {
    throw UsageError("data", fmt::format("data file \"{}\": {} tokens are too few, expected at least {} "
                                         "(sequence length + 1)",
                                         source.name, source.tokens, seq_len_ + 1));
  }
  source.first_sample = size_;
  size_ += samples;
  tokens_ += source.tokens;
  sources_.push_back(std::move(source));
}

void TokenDataset::read(std::int64_t index, std::int64_t vocab_size, std::span<std::int32_t> out) const {
  DTRUN_ASSERT(index >= 0 && index < size_ && static_cast<std::int64_t>(out.size()) == seq_len_ + 1);
  const auto next = std::ranges::upper_bound(sources_, index, {}, &Source::first_sample);
  const Source& source = *std::prev(next);
  const auto start = (index - source.first_sample) * seq_len_;
  for (std::int64_t i = 0; i <= seq_len_; ++i) {
    const auto at = static_cast<std::size_t>(start + i);
    const auto token = token_at(source, at);
    if (token >= vocab_size) {
      throw UsageError("data", fmt::format("data file \"{}\": token {} at position {}, expected less than the "
                                           "vocabulary size {}",
                                           source.name, token, at, vocab_size));
    }
    out[static_cast<std::size_t>(i)] = token;
  }
}

std::uint64_t TokenDataset::fingerprint() const {
  const std::size_t width = format_ == TokenFormat::bytes ? 1 : format_ == TokenFormat::u16 ? 2 : 4;
  std::uint64_t hash = 0;
  for (const auto& source : sources_) {
    const auto bytes = static_cast<std::size_t>(source.tokens) * width;
    hash = XXH64(&source.tokens, sizeof source.tokens, hash);
    const auto blocks = std::min(kFingerprintBlocks, (bytes + kFingerprintBlock - 1) / kFingerprintBlock);
    const auto room = bytes - std::min(bytes, kFingerprintBlock);
    for (std::size_t block = 0; block < blocks; ++block) {
      const auto from = blocks == 1 ? 0 : room / (blocks - 1) * block + room % (blocks - 1) * block / (blocks - 1);
      hash = XXH64(source.data + from, std::min(kFingerprintBlock, bytes), hash);
    }
  }
  return hash;
}

}  // namespace dtrun::runtime
