// Token sequences cut out of files: text (one token per byte, vocabulary 256, or those of a tokenizer) or ready-made
// tokens (.bin, token_file.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dtrun::runtime {

class BpeTokenizer;
struct MappedFile;

enum class TokenFormat { bytes, u16, i32 };

// Sample i is `seq_len + 1` tokens: the inputs are the first seq_len, the targets the last. Consecutive samples of a
// file share one token, so that every token but the first of a file is a target once; what is left at the end of a file
// is not used. Files are mapped, not read; tokens of a tokenizer are held in memory. Immutable after construction; any
// thread. A file that shrinks while it is mapped ends the process.
class TokenDataset {
 public:
  // `tokenizer`: of text files, used here only; null: bytes. Throws UsageError naming the file: missing, not a regular
  // file, empty, a .bin of the wrong size or with a tokenizer, fewer than seq_len + 1 tokens, text and .bin mixed; and
  // for no files at all.
  static TokenDataset from_files(std::span<const std::filesystem::path> paths, std::int64_t seq_len,
                                 BpeTokenizer* tokenizer = nullptr);
  // `text` must outlive the data set. `name` is what messages call it.
  static TokenDataset from_text(std::string_view text, std::int64_t seq_len, std::string name,
                                BpeTokenizer* tokenizer = nullptr);

  std::int64_t size() const noexcept { return size_; }
  std::int64_t seq_len() const noexcept { return seq_len_; }
  std::int64_t tokens() const noexcept { return tokens_; }
  TokenFormat format() const noexcept { return format_; }
  // Of the bytes or the tokenizer; 0: ready-made tokens do not say.
  std::int64_t vocab_size() const noexcept { return vocab_size_; }

  // xxh64 of the numbers of tokens and of up to 64 blocks of 4 KiB of each file, evenly spread, its first and last
  // among them: tells apart what people mix up, and takes no longer for a big file.
  std::uint64_t fingerprint() const;

  // Writes the seq_len + 1 tokens of sample `index` into `out` (of that size). Throws UsageError, naming file and
  // position, for a token >= vocab_size.
  void read(std::int64_t index, std::int64_t vocab_size, std::span<std::int32_t> out) const;

 private:
  struct Source {
    std::string name;
    std::shared_ptr<const void> owner;  // keeps the mapping; empty for from_text
    const std::byte* data = nullptr;
    std::int64_t tokens = 0;
    std::int64_t first_sample = 0;
  };
  TokenDataset(TokenFormat format, std::int64_t seq_len)
      : format_(format), seq_len_(seq_len), vocab_size_(format == TokenFormat::bytes ? 256 : 0) {}
  void add(Source source);
  void add_text(std::string name, const MappedFile& file, BpeTokenizer* tokenizer);
  void be_of(const BpeTokenizer& tokenizer);
  std::int32_t token_at(const Source& source, std::size_t at) const;

  TokenFormat format_;
  std::int64_t seq_len_;
  std::int64_t vocab_size_;
  std::int64_t size_ = 0;
  std::int64_t tokens_ = 0;
  std::vector<Source> sources_;
};

}  // namespace dtrun::runtime
