#include "worker_runtime/data/token_dataset.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::runtime {
namespace {

struct Mapping {
  std::shared_ptr<const void> owner;
  const std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

Mapping map_file(const std::filesystem::path& path) {
  const auto refuse = [&](std::string_view why) {
    return UsageError("data", fmt::format("data file \"{}\": {}", path.string(), why));
  };
  // O_NONBLOCK: opening a FIFO must not wait for a writer; the type is checked next.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw refuse(std::generic_category().message(errno));
  struct stat status {};
  if (::fstat(fd.value(), &status) != 0) throw refuse(std::generic_category().message(errno));
  if (S_ISDIR(status.st_mode)) throw refuse("is a directory, expected a file");
  if (!S_ISREG(status.st_mode)) throw refuse("is not a regular file");
  if (status.st_size == 0) throw refuse("is empty");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* const address = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.value(), 0);
  if (address == MAP_FAILED) throw refuse(fmt::format("cannot be mapped: {}", std::generic_category().message(errno)));
  Mapping result;
  result.owner = std::shared_ptr<const void>(
      address, [bytes](const void* p) { static_cast<void>(::munmap(const_cast<void*>(p), bytes)); });
  result.data = static_cast<const std::byte*>(address);
  result.bytes = static_cast<std::int64_t>(bytes);
  return result;
}

TokenFormat format_of(const std::filesystem::path& path) {
  return path.extension() == ".bin" ? TokenFormat::u16 : TokenFormat::bytes;
}

}  // namespace

TokenDataset TokenDataset::from_files(std::span<const std::filesystem::path> paths, std::int64_t seq_len) {
  if (paths.empty()) throw UsageError("data", "no data files given, expected at least one");
  TokenDataset result(format_of(paths.front()), seq_len);
  for (const auto& path : paths) {
    if (format_of(path) != result.format_) {
      throw UsageError("data", fmt::format("data files \"{}\" and \"{}\": text and .bin token files cannot be mixed",
                                           paths.front().string(), path.string()));
    }
    const auto mapping = map_file(path);
    const std::int64_t width = result.format_ == TokenFormat::u16 ? 2 : 1;
    if (mapping.bytes % width != 0) {
      throw UsageError("data", fmt::format("data file \"{}\": {} bytes, expected an even number (16-bit tokens)",
                                           path.string(), mapping.bytes));
    }
    result.add({path.string(), mapping.owner, mapping.data, mapping.bytes / width, 0});
  }
  return result;
}

TokenDataset TokenDataset::from_text(std::string_view text, std::int64_t seq_len, std::string name) {
  TokenDataset result(TokenFormat::bytes, seq_len);
  result.add({std::move(name), nullptr, reinterpret_cast<const std::byte*>(text.data()),
              static_cast<std::int64_t>(text.size()), 0});
  return result;
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
    const auto token = format_ == TokenFormat::bytes ? std::to_integer<std::int32_t>(source.data[at])
                                                     : std::to_integer<std::int32_t>(source.data[2 * at]) |
                                                           std::to_integer<std::int32_t>(source.data[2 * at + 1]) << 8;
    if (token >= vocab_size) {
      throw UsageError("data", fmt::format("data file \"{}\": token {} at position {}, expected less than the "
                                           "vocabulary size {}",
                                           source.name, token, at, vocab_size));
    }
    out[static_cast<std::size_t>(i)] = token;
  }
}

}  // namespace dtrun::runtime
