// parallelize(): tensor parallelism as torch's parallelize_module: a plan says by name how each layer is cut.
#pragma once

#include <span>

#include "worker_runtime/nn/module.hpp"

namespace dtrun::runtime {

// Gives every parameter the part of rank `rank` of `size`, before anything is bound. A glob (* and ?, * also over dots)
// matches a parameter (h.0.mlp.c_fc.weight) or the layer that it belongs to (h.0.mlp.c_fc). Styles:
//   column    a linear layer: each rank has some columns of its result, and its bias there; takes whole rows
//   row       a linear layer: each has some rows of its product; takes the columns that column-wise layers give
//   vocab     a table [vocabulary, width] as embedding, as output head or both (tied): each has some rows, cut as
//             torch.chunk cuts, at least one; or a linear layer that is the head
//   sequence, replicate   every rank has all of it, as what no glob matches. `sequence` says that it works between cut
//             layers (norms, positions): with sequence parallelism each rank computes it for its part of the sequence
// Throws UsageError: a glob that matches nothing, an unknown style, two styles for one parameter, one that a parameter
// cannot have, and widths or heads that the ranks cannot share equally.
void parallelize(Model& model, std::span<const TensorPlanEntry> plan, int size, int rank);

}  // namespace dtrun::runtime
