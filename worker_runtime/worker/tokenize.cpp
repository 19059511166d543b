// dtrun-worker tokenize: text files to one .bin of 16-bit tokens, once for many runs. Memory is that of a piece of
// text.
#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/output_file.hpp"
#include "worker_runtime/data/bpe_tokenizer.hpp"
#include "worker_runtime/data/mapped_file.hpp"
#include "worker_runtime/worker/commands.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::int64_t kMostTokens = 65536;  // of 16 bits
constexpr std::string_view kExtension = ".bin";

void check(const TokenizeConfig& config, const BpeTokenizer& tokenizer) {
  if (tokenizer.vocab_size() > kMostTokens) {
    throw UsageError("tokenize", fmt::format("tokenizer \"{}\" has a vocabulary of {}, expected at most {}: .bin files "
                                             "have 16 bits for a token",
                                             config.tokenizer, tokenizer.vocab_size(), kMostTokens));
  }
  if (std::filesystem::path(config.out).extension() != kExtension)
    throw UsageError("tokenize", fmt::format("--out is \"{}\", expected a name that ends in .bin", config.out));
  for (const auto& path : config.data) {
    if (std::filesystem::path(path).extension() == kExtension)
      throw UsageError("tokenize", fmt::format("--data has \"{}\", expected text, not tokens", path));
  }
}

}  // namespace

void run_tokenize(const TokenizeConfig& config) {
  auto tokenizer = BpeTokenizer::from_directory(config.tokenizer);
  check(config, tokenizer);
  std::vector<MappedFile> files;
  for (const auto& path : config.data) files.push_back(map_file(path));
  OutputFile out("tokenize", config.out);
  std::int64_t tokens = 0, bytes = 0;
  std::vector<std::byte> written;
  for (const auto& file : files) {
    tokenizer.encode_pieces(file.text(), [&](std::span<const std::int32_t> piece) {
      written.clear();
      for (const auto token : piece) {
        written.push_back(static_cast<std::byte>(token & 0xFF));
        written.push_back(static_cast<std::byte>(token >> 8));
      }
      out.write(written);
      tokens += static_cast<std::int64_t>(piece.size());
    });
    bytes += file.bytes;
  }
  out.commit();
  fmt::print("{}: {} tokens of {} bytes, vocabulary {}\n", config.out, tokens, bytes, tokenizer.vocab_size());
}

}  // namespace dtrun::runtime
