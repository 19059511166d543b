#include "worker_runtime/checkpoint/rank_part.hpp"

#include <fmt/format.h>

#include <map>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/hash.hpp"
#include "worker_runtime/checkpoint/runs.hpp"
#include "worker_runtime/checkpoint/safetensors_header.hpp"
#include "worker_runtime/checkpoint/share.hpp"

namespace dtrun::runtime {

void RankPart::copy(std::span<const StatePiece> pieces) {
  std::vector<PieceShare> shares;
  std::int64_t elements = 0;
  for (const StatePiece& piece : pieces) {
    check_piece(piece);
    shares.push_back(share_of(piece));
    elements += shares.back().count;
  }
  items_.clear();
  tensors_.clear();
  bytes_ = static_cast<std::uint64_t>(elements) * sizeof(float);
  if (memory_.numel() < elements) {
    memory_ = Tensor();  // first: both at once may be too much
    memory_ = Tensor::on_host({elements}, DType::f32);
  }
  std::map<std::string, std::size_t> numbers;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto& piece = pieces[i];
    const auto [first, count] = shares[i];
    const auto [known, added] = numbers.try_emplace(piece.name, tensors_.size());
    if (added) tensors_.push_back({piece.name, piece.shape});
    if (tensors_[known->second].shape != piece.shape) {
      throw ShapeError("checkpoint", fmt::format("two pieces of \"{}\" are of tensors {} and {}", piece.name,
                                                 tensors_[known->second].shape.to_string(), piece.shape.to_string()));
    }
    if (count == 0) continue;
    const auto to = memory_.narrow(at, count);
    to.copy_from(piece.tensor.view({piece.tensor.numel()}).narrow(first, count));
    items_.push_back({known->second, skip_elements(piece.where, first), to});
    at += count;
  }
}

CheckpointIndex RankPart::write(const std::filesystem::path& directory, int rank, int world, std::int64_t step,
                                const std::string& save) const {
  CheckpointIndex index{.step = step, .world = world, .save = save, .tensors = tensors_, .files = {}};
  std::vector<TensorDescription> described;
  for (const Item& item : items_) {
    const auto first = Runs(item.where, item.elements.numel())[0].global;
    described.push_back({fmt::format("{}@{}", tensors_[item.tensor].name, first), DType::f32, item.elements.shape()});
  }
  // Step, rank and save make every header another one, so that no file can stand in for another.
  const std::map<std::string, std::string> metadata{
      {"rank", std::to_string(rank)}, {"save", save}, {"step", std::to_string(step)}};
  const auto header = make_safetensors_header(described, metadata);
  const std::uint64_t length = header.size();
  ByteHash header_hash;
  header_hash.add(std::as_bytes(std::span(&length, 1)));
  header_hash.add(std::as_bytes(std::span(header)));

  SafetensorsWriter writer((directory / rank_file_name(rank)).string(), std::move(described), metadata);
  CheckpointFile file{.size = sizeof length + length, .header_hash = header_hash.value(), .entries = {}};
  for (const Item& item : items_) {
    const Tensor& elements = item.elements;
    file.entries.push_back(
        {item.tensor, item.where, elements.numel(), file.size, hash_bytes({elements.raw(), elements.bytes()})});
    writer.write(elements);
    file.size += elements.bytes();
  }
  writer.commit();
  index.files.push_back(std::move(file));
  return index;
}

}  // namespace dtrun::runtime
