#include "worker_runtime/checkpoint/rank_file.hpp"

#include <fmt/format.h>

#include <map>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/runs.hpp"
#include "worker_runtime/checkpoint/safetensors_header.hpp"

namespace dtrun::runtime {

RankFileWriter::RankFileWriter(const std::filesystem::path& directory, int rank, CheckpointIndex index,
                               std::span<const FileRange> ranges)
    : index_(std::move(index)) {
  std::vector<TensorDescription> described;
  for (const auto& [tensor, where, count] : ranges) {
    DTRUN_ASSERT(count > 0);
    const auto first = Runs(where, count)[0].global;
    described.push_back({fmt::format("{}@{}", index_.tensors[tensor].name, first), DType::f32, {count}});
  }
  // Step, rank and save make every header another one, so that no file can stand in for another.
  const std::map<std::string, std::string> metadata{
      {"rank", std::to_string(rank)}, {"save", index_.save}, {"step", std::to_string(index_.step)}};
  const auto header = make_safetensors_header(described, metadata);
  const std::uint64_t length = header.size();
  ByteHash header_hash;
  header_hash.add(std::as_bytes(std::span(&length, 1)));
  header_hash.add(std::as_bytes(std::span(header)));
  file_.size = sizeof length + length;
  file_.header_hash = header_hash.value();
  for (const auto& [tensor, where, count] : ranges) {
    file_.entries.push_back({tensor, where, count, file_.size, 0});
    file_.size += file_.entries.back().bytes();
  }
  writer_.emplace((directory / rank_file_name(rank)).string(), std::move(described), metadata);
}

void RankFileWriter::write(const Tensor& elements) {
  if (elements.numel() == 0) return;
  DTRUN_ASSERT(next_ < file_.entries.size());
  auto& entry = file_.entries[next_];
  if (!hash_) {
    hash_.emplace();
    left_ = entry.count;
  }
  DTRUN_ASSERT(elements.numel() <= left_);
  hash_->add({elements.raw(), elements.bytes()});
  writer_->write_elements(elements);
  left_ -= elements.numel();
  if (left_ > 0) return;
  entry.hash = hash_->value();
  hash_.reset();
  ++next_;
}

CheckpointIndex RankFileWriter::commit() {
  DTRUN_ASSERT(next_ == file_.entries.size());
  writer_->commit();
  index_.files = {std::move(file_)};
  return std::move(index_);
}

}  // namespace dtrun::runtime
