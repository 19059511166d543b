#include "worker_runtime/checkpoint/checkpoint_loader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/runs.hpp"
#include "worker_runtime/checkpoint/share.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::uint64_t kLargestGather = std::uint64_t{4} << 20;  // bytes that go through the buffer at once
constexpr std::size_t kNamesShown = 5;

// Elements that lie together in a file and in a piece. All numbers are bytes.
struct Segment {
  std::size_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
  std::uint64_t local = 0;

  bool continues(const Segment& before) const { return file == before.file && begin == before.begin + before.count; }
};

class Loader {
 public:
  explicit Loader(const std::filesystem::path& directory)
      : directory_(directory), index_(read_index(directory, read_meta(directory))), entries_(index_.tensors.size()) {
    for (std::size_t i = 0; i < index_.tensors.size(); ++i) numbers_.emplace(index_.tensors[i].name, i);
    for (std::size_t file = 0; file < index_.files.size(); ++file)
      for (const auto& entry : index_.files[file].entries) entries_[entry.tensor].push_back({file, &entry});
    files_.resize(index_.files.size());
  }

  void check(std::span<const StatePiece> pieces) const;
  void fill(const StatePiece& piece);

  LoadCounters counters;

 private:
  struct Source {
    std::size_t file;
    const CheckpointEntry* entry;
  };
  std::vector<Segment> segments_of(const StatePiece& piece) const;
  void read(std::span<const Segment> together, std::byte* out);
  const UniqueFd& open(std::size_t file);
  std::string path_of(std::size_t file) const { return (directory_ / rank_file_name(static_cast<int>(file))).string(); }

  const std::filesystem::path& directory_;
  CheckpointIndex index_;
  std::map<std::string, std::size_t, std::less<>> numbers_;
  std::vector<std::vector<Source>> entries_;  // of each tensor
  std::vector<OpenFile> files_;               // opened when they are needed
  std::vector<std::byte> buffer_;
};

void Loader::check(std::span<const StatePiece> pieces) const {
  std::vector<std::string> faults;
  for (const StatePiece& piece : pieces) {
    check_piece(piece);
    const auto found = numbers_.find(piece.name);
    if (found == numbers_.end()) {
      faults.push_back(fmt::format("\"{}\" is missing", piece.name));
    } else if (const auto& shape = index_.tensors[found->second].shape; shape != piece.shape) {
      faults.push_back(
          fmt::format("\"{}\" is {} there, expected {}", piece.name, shape.to_string(), piece.shape.to_string()));
    }
  }
  if (faults.empty()) return;
  const auto shown = std::min(faults.size(), kNamesShown);
  throw UsageError("checkpoint",
                   fmt::format("\"{}\" is not of this model: {}{}", directory_.string(),
                               fmt::join(std::span(faults).first(shown), ", "),
                               shown < faults.size() ? fmt::format(", and {} more", faults.size() - shown) : ""));
}

std::vector<Segment> Loader::segments_of(const StatePiece& piece) const {
  std::vector<Segment> segments;
  const Runs wanted(piece.where, piece.tensor.numel());
  std::int64_t found = 0;
  for (const auto& [file, entry] : entries_[numbers_.find(piece.name)->second]) {
    for_each_common(wanted, Runs(entry->where, entry->count),
                    [&](std::int64_t count, std::int64_t, std::int64_t local, std::int64_t stored) {
                      found += count;
                      const auto bytes = [](std::int64_t elements) {
                        return static_cast<std::uint64_t>(elements) * sizeof(float);
                      };
                      segments.push_back({file, entry->begin + bytes(stored), bytes(count), bytes(local)});
                    });
  }
  DTRUN_ASSERT(found == piece.tensor.numel());  // an index has every element of its tensors once
  std::ranges::sort(segments, {}, [](const Segment& s) { return std::tuple(s.file, s.begin); });
  return segments;
}

const UniqueFd& Loader::open(std::size_t file) {
  auto& opened = files_[file];
  if (!opened.fd) {
    opened = open_to_read(path_of(file));
    if (opened.size != index_.files[file].size) {
      throw Error("checkpoint", fmt::format("\"{}\" has {} bytes, expected {}: it was changed", path_of(file),
                                            opened.size, index_.files[file].size));
    }
  }
  return opened.fd;
}

void Loader::read(std::span<const Segment> together, std::byte* out) {
  const auto& first = together.front();
  const auto& file = open(first.file);
  if (together.size() == 1) return read_at(file, path_of(first.file), first.begin, {out + first.local, first.count});
  buffer_.resize(together.back().begin + together.back().count - first.begin);
  read_at(file, path_of(first.file), first.begin, buffer_);
  for (const auto& segment : together)
    std::memcpy(out + segment.local, buffer_.data() + (segment.begin - first.begin), segment.count);
}

void Loader::fill(const StatePiece& piece) {
  if (piece.tensor.numel() == 0) return;
  const auto segments = segments_of(piece);
  const bool on_device = piece.tensor.device() != nullptr;
  const Tensor here = on_device ? Tensor::on_host(piece.tensor.shape(), DType::f32) : piece.tensor;
  for (std::size_t from = 0; from < segments.size();) {
    auto to = from + 1;
    auto bytes = segments[from].count;
    const auto fits = [&] {
      return to < segments.size() && segments[to].continues(segments[to - 1]) &&
             bytes + segments[to].count <= kLargestGather;
    };
    for (; fits(); ++to) bytes += segments[to].count;
    read(std::span(segments).subspan(from, to - from), here.raw());
    counters.bytes_read += bytes;
    counters.ranges += from == 0 || !segments[from].continues(segments[from - 1]) ? 1 : 0;
    from = to;
  }
  if (on_device) piece.tensor.copy_from(here);
}

}  // namespace

LoadCounters load_checkpoint(const std::filesystem::path& step_directory, std::span<const StatePiece> pieces) {
  Loader loader(step_directory);
  loader.check(pieces);
  for (const StatePiece& piece : pieces) loader.fill(piece);
  return loader.counters;
}

}  // namespace dtrun::runtime
