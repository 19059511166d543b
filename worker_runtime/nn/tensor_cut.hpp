// TensorCut: which part of a parameter each rank of tensor parallelism has. A value, pure; parallelize() chooses it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "worker_runtime/core/shape.hpp"
#include "worker_runtime/mesh/box.hpp"
#include "worker_runtime/ops/random.hpp"

namespace dtrun::runtime {

// As torch's ColwiseParallel, RowwiseParallel (of a linear layer, of an embedding or head) and SequenceParallel; see
// nn/parallelize.hpp.
enum class TensorStyle : std::uint8_t { replicate, column, row, vocab, sequence };
std::string_view name_of(TensorStyle style);

// One line of a plan: which parameters or layers, and the name of their style.
struct TensorPlanEntry {
  std::string glob;
  std::string style;
};

struct TensorCut {
  TensorStyle style = TensorStyle::replicate;
  int dim = -1;    // that is cut; -1: every rank has all of it
  int blocks = 1;  // `dim` is so many equal blocks side by side, each cut for itself: 3 for q, k and v in one matrix
  int parts = 1;   // ranks

  bool is_cut() const { return dim >= 0 && parts > 1; }
  // Of one block of `dim`: torch.chunk's range.
  Range range(const Shape& whole, int rank) const;
  Shape local_shape(const Shape& whole, int rank) const;
  // Where element `first` of a rank's part, and those behind it, lie in the whole parameter.
  ops::GlobalIndex global_index(const Shape& whole, int rank, std::int64_t first = 0) const;

  // Copies between the whole parameter and a rank's part of it, both dense f32.
  void copy_out(const Shape& whole, int rank, const float* from, float* part) const;
  void copy_in(const Shape& whole, int rank, const float* part, float* to) const;
};

}  // namespace dtrun::runtime
