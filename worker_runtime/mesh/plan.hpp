// How a tensor gets from one layout to another, as a value: made and counted for any number of ranks, without
// processes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/comm/collective.hpp"
#include "worker_runtime/mesh/box.hpp"
#include "worker_runtime/mesh/layout.hpp"
#include "worker_runtime/mesh/mesh_shape.hpp"

namespace dtrun::runtime {

enum class StepKind : std::uint8_t {
  slice,           // R -> S: keeps its own range; moves nothing
  keep_first,      // R -> P: the first rank keeps its elements, the others have zeros; moves nothing
  pad,             // S -> P: its own range, zeros around it; moves nothing
  all_reduce,      // P -> R, over all axes that are summed at once
  reduce_scatter,  // P -> S, likewise
  all_gather,      // S -> R
  all_to_all       // S(i) -> S(j)
};
std::string_view name_of(StepKind kind);

struct RedistributeStep {
  StepKind kind = StepKind::slice;
  std::vector<int> axes;  // ascending; the ranks along them take part
  Layout before, after;
};

struct RedistributePlan {
  Shape shape;  // of the whole tensor
  DType dtype = DType::f32;
  MeshShape mesh;
  Layout from, to;
  std::vector<RedistributeStep> steps;

  // What the process group is asked for: equal parts of so many elements, the largest that any rank of it needs. An
  // all_reduce has one part. 0 for steps that move nothing and for parts without elements: then nothing is called.
  std::int64_t part_of(const RedistributeStep& step, int rank) const;
  // What `rank` sends, counted as ProcessGroup counts it (bytes_sent()).
  std::uint64_t bytes(const RedistributeStep& step, int rank) const;
  std::uint64_t bytes(int rank) const;
  // The same by axes: "dp", or "dp+tp" for one operation over both.
  std::map<std::string, std::uint64_t> bytes_by_axes(int rank) const;
  std::string to_string() const;  // "reduce_scatter dp, all_gather tp"
};

// Pure; equal on all ranks. Sums go over all axes that stop being partial in one operation, so the same ranks give the
// same bits on any mesh; shards are cut before sums, sums and exchanges come before gathers. Axes of one rank cost
// nothing. Throws ShapeError for layouts that do not fit.
RedistributePlan plan_redistribute(const Shape& shape, DType dtype, const Layout& from, const Layout& to,
                                   const MeshShape& mesh);

}  // namespace dtrun::runtime
