#include "worker_runtime/data/token_file.hpp"

#include <fmt/format.h>

#include <cstddef>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::int64_t kHeaderBytes = 256 * 4;
constexpr std::uint32_t kMagic = 20240520;         // llm.c, 16-bit tokens
constexpr std::uint32_t kMagicOfLlama = 20240801;  // llm.c, 32-bit tokens
constexpr std::uint32_t kVersion = 1;

std::uint32_t number_at(const MappedFile& file, std::size_t index) {
  std::uint32_t value = 0;
  for (std::size_t byte = 0; byte < 4; ++byte)
    value |= std::to_integer<std::uint32_t>(file.data[4 * index + byte]) << (8 * byte);
  return value;
}

}  // namespace

TokenFile token_file(const MappedFile& file, std::string_view name) {
  const auto refuse = [&](std::string_view why) {
    return UsageError("data", fmt::format("data file \"{}\": {}", name, why));
  };
  const auto magic = file.bytes < 4 ? 0 : number_at(file, 0);
  if (magic == kMagicOfLlama) throw refuse("has llm.c's header of 32-bit tokens, expected 16-bit tokens");
  if (magic != kMagic) {
    if (file.bytes % 2 != 0) throw refuse(fmt::format("{} bytes, expected an even number (16-bit tokens)", file.bytes));
    return {file.data, file.bytes / 2};
  }
  if (file.bytes < kHeaderBytes)
    throw refuse(
        fmt::format("begins as llm.c's files do, but has {} bytes: the header has {}", file.bytes, kHeaderBytes));
  if (const auto version = number_at(file, 1); version != kVersion)
    throw refuse(fmt::format("has llm.c's header of version {}, expected {}", version, kVersion));
  const std::int64_t tokens = number_at(file, 2);
  if (file.bytes != kHeaderBytes + 2 * tokens) {
    throw refuse(fmt::format("its header says {} tokens, so {} bytes; the file has {}", tokens,
                             kHeaderBytes + 2 * tokens, file.bytes));
  }
  return {file.data + kHeaderBytes, tokens};
}

}  // namespace dtrun::runtime
