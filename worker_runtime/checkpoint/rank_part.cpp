#include "worker_runtime/checkpoint/rank_part.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/rank_file.hpp"
#include "worker_runtime/checkpoint/runs.hpp"
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
  std::vector<FileRange> ranges;
  for (const Item& item : items_) ranges.push_back({item.tensor, item.where, item.elements.numel()});
  RankFileWriter writer(directory, rank, {.step = step, .world = world, .save = save, .tensors = tensors_, .files = {}},
                        ranges);
  for (const Item& item : items_) {
    const auto values = item.elements.span<float>();
    if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
      throw Error("checkpoint",
                  fmt::format("\"{}\" is not finite: nobody could go on from that", tensors_[item.tensor].name));
    }
    writer.write(item.elements);
  }
  return writer.commit();
}

}  // namespace dtrun::runtime
