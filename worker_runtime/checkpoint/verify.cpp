#include "worker_runtime/checkpoint/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/hash.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;

// One file after another, through one buffer.
class Verifier {
 public:
  explicit Verifier(const std::filesystem::path& directory) : directory_(directory), buffer_(kChunk) {}

  void open(int rank, const CheckpointFile& file) {
    if (rank == rank_) return;
    rank_ = rank;
    path_ = (directory_ / rank_file_name(rank)).string();
    file_ = open_to_read(path_);
    if (file_.size != file.size)
      throw Error("checkpoint",
                  fmt::format("it has {} bytes, expected {}: cut, or another file", file_.size, file.size));
  }
  void check(std::uint64_t begin, std::uint64_t count, std::uint64_t expected, const std::string& what) {
    ByteHash hash;
    for (std::uint64_t done = 0; done < count;) {
      const std::span part(buffer_.data(), std::min(kChunk, count - done));
      read_at(file_.fd, path_, begin + done, part);
      hash.add(part);
      done += part.size();
    }
    bytes += count;
    if (hash.value() != expected) {
      throw Error("checkpoint",
                  fmt::format("bytes {} to {} ({}) are not those that were saved: damaged, or another file", begin,
                              begin + count, what));
    }
  }

  std::uint64_t bytes = 0;

 private:
  const std::filesystem::path& directory_;
  std::vector<std::byte> buffer_;
  int rank_ = -1;
  std::string path_;
  OpenFile file_;
};

std::uint64_t size_of_all(const CheckpointIndex& index) {
  std::uint64_t size = 0;
  for (const auto& file : index.files) size += file.size;
  return size;
}

}  // namespace

VerifiedShare verify_share(const std::filesystem::path& step_directory, const CheckpointIndex& index, int part,
                           int parts) {
  // Bytes per part; what lies behind the last one is its own. A sum that overflows only cuts elsewhere.
  const auto each = size_of_all(index) / static_cast<std::uint64_t>(parts) + 1;
  const auto is_mine = [&](std::uint64_t at) {
    return std::min(at / each, static_cast<std::uint64_t>(parts - 1)) == static_cast<std::uint64_t>(part);
  };
  Verifier verifier(step_directory);
  std::uint64_t at = 0;
  for (std::size_t rank = 0; rank < index.files.size(); ++rank) {
    const auto& file = index.files[rank];
    try {
      if (is_mine(at)) {
        verifier.open(static_cast<int>(rank), file);
        verifier.check(0, file.header_bytes(), file.header_hash, "its header");
      }
      for (const auto& entry : file.entries) {
        if (!is_mine(at + entry.begin)) continue;
        verifier.open(static_cast<int>(rank), file);
        verifier.check(entry.begin, entry.bytes(), entry.hash, index.tensors[entry.tensor].name);
      }
    } catch (const std::exception& error) {
      return {fmt::format("{}: {}", rank_file_name(static_cast<int>(rank)), reason_of(error)), verifier.bytes};
    }
    at += file.size;
  }
  return {{}, verifier.bytes};
}

}  // namespace dtrun::runtime
