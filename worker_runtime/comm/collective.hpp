// The vocabulary of collectives: which operations there are, and one call of one of them as a value.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime {

// avg is the sum divided once by the number of ranks, for f32 and bf16 only. max and min hand on NaN.
enum class ReduceOp : std::uint8_t { sum, avg, max, min, product };

enum class CommOp : std::uint8_t {
  barrier,
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  send,
  recv
};
inline constexpr std::size_t kCommOps = 11;

constexpr std::string_view name_of(ReduceOp op) {
  constexpr std::array<std::string_view, 5> names{"sum", "avg", "max", "min", "product"};
  return static_cast<std::size_t>(op) < names.size() ? names[static_cast<std::size_t>(op)] : "?";
}

constexpr std::string_view name_of(CommOp op) {
  constexpr std::array<std::string_view, kCommOps> names{
      "barrier", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
      "gather",  "scatter",    "all_to_all",     "send",       "recv"};
  return static_cast<std::size_t>(op) < names.size() ? names[static_cast<std::size_t>(op)] : "?";
}

constexpr bool reduces(CommOp op) {
  return op == CommOp::all_reduce || op == CommOp::reduce_scatter || op == CommOp::reduce;
}
constexpr bool has_root(CommOp op) {
  return op == CommOp::broadcast || op == CommOp::reduce || op == CommOp::gather || op == CommOp::scatter;
}

// One call. The tensors are borrowed for its duration; in-place operations name the same tensor twice.
struct Collective {
  CommOp op = CommOp::barrier;
  ReduceOp reduce = ReduceOp::sum;
  int root = -1;  // of rooted operations; the peer of send and recv
  const Tensor* input = nullptr;
  const Tensor* output = nullptr;
  std::uint32_t tag = 0;     // send and recv
  std::uint64_t flight = 0;  // its number in the flight record; 0: none
};

// What a call is for: a zero-terminated label for messages, and an id that ranks compare (0: none).
struct CommAction {
  std::array<char, 48> label{};
  std::uint32_t id = 0;
};

// What a rank puts in or gets out, whichever is one rank's part: the tensor that an operation is counted by. Null for a
// barrier.
const Tensor* part_of(const Collective& call);

// Throws ShapeError when the arguments cannot belong together (undefined or overlapping tensors, sizes, dtypes, root),
// before anything is sent. `n` ranks, this one is `rank`.
void check_collective(const Collective& call, int rank, int n);
// Throws ShapeError when a coalesced call has not as many outputs as inputs.
void check_spans(std::size_t outputs, std::size_t inputs);

// Bytes that one rank of `n` sends for an operation, by the usual cost model (ring all-reduce), whatever the backend
// really does. `bytes`: all_reduce, broadcast, reduce, send: the tensor; reduce_scatter: the output; all_gather,
// gather: the input; scatter: the output; all_to_all: the whole input. The step program predicts with this function,
// the groups count with it.
constexpr std::uint64_t bytes_sent(CommOp op, std::uint64_t bytes, int n, bool is_root = false) {
  const auto others = static_cast<std::uint64_t>(n - 1);
  switch (op) {
    case CommOp::all_reduce:
      return 2 * others * bytes / static_cast<std::uint64_t>(n);
    case CommOp::reduce_scatter:
    case CommOp::all_gather:
      return others * bytes;
    case CommOp::broadcast:
    case CommOp::scatter:
      return is_root ? others * bytes : 0;
    case CommOp::reduce:
    case CommOp::gather:
      return is_root ? 0 : bytes;
    case CommOp::all_to_all:
      return others * (bytes / static_cast<std::uint64_t>(n));
    case CommOp::send:
      return bytes;
    case CommOp::barrier:
    case CommOp::recv:
      return 0;
  }
  return 0;
}

}  // namespace dtrun::runtime
