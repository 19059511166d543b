// Words that several ops share.
//
// Rules of every op: the caller allocates all outputs; tensors are contiguous; f32 unless the op says otherwise;
// outputs do not overlap inputs unless the op allows it; extents of 0 are fine. A tensor that does not fit throws
// ShapeError before anything is written. With abstract tensors, all or none of them, an op checks and does no more.
// "[N, d]" in a shape comment means: any rank, N is the product of all dimensions but the last. NaN and infinity
// propagate as in the plain formula. Results do not depend on the number of threads (threads.hpp).
#pragma once

#include <cstdint>

namespace dtrun::runtime::ops {

// How the weight of a linear layer lies in memory: [in, out] is Hugging Face's GPT-2 (Conv1D), [out, in] is
// torch.nn.Linear and Llama.
enum class WeightLayout : std::uint8_t { in_out, out_in };

// Whether a result replaces what the output holds or is added to it. `add` computes the whole result first and adds it
// once, so it is bitwise the same as `overwrite` into another tensor followed by an addition.
enum class Into : std::uint8_t { overwrite, add };

}  // namespace dtrun::runtime::ops
