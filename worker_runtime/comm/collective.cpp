#include "worker_runtime/comm/collective.hpp"

#include <fmt/format.h>

#include <string>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {

namespace {

[[noreturn]] void refuse(const Collective& call, const std::string& text) {
  throw ShapeError("comm", fmt::format("{}: {}", name_of(call.op), text));
}

std::string describe(const Tensor& tensor) {
  return tensor.defined() ? fmt::format("{} {}", name_of(tensor.dtype()), tensor.shape().to_string())
                          : "an undefined tensor";
}

const Tensor& defined(const Collective& call, const Tensor* tensor, const char* role) {
  if (tensor == nullptr || !tensor->defined()) refuse(call, fmt::format("{} is an undefined tensor", role));
  return *tensor;
}

// `whole` must be n times `part`, and the two may only share memory when `part` is exactly part `own` of it (own < 0:
// not at all).
void check_parts(const Collective& call, const Tensor& whole, const char* whole_role, const Tensor& part,
                 const char* part_role, int n, int own) {
  if (whole.dtype() != part.dtype() || whole.numel() != part.numel() * n) {
    refuse(call, fmt::format("{} is {}, expected {} times {}, which is {}", whole_role, describe(whole), n, part_role,
                             describe(part)));
  }
  const bool in_place = own >= 0 && part.begins_at(whole, part.bytes() * static_cast<std::size_t>(own));
  if (!in_place && whole.overlaps(part)) {
    refuse(call, fmt::format("{} and {} overlap, expected {}", whole_role, part_role,
                             own < 0 ? "separate memory" : fmt::format("separate memory or exactly part {}", own)));
  }
}

void check_tensors(const Collective& call, int rank, int n) {
  const bool is_root = call.root == rank;
  switch (call.op) {
    case CommOp::barrier:
      return;
    case CommOp::all_reduce:
    case CommOp::broadcast:
    case CommOp::reduce:
    case CommOp::send:
      defined(call, call.input, "the tensor");
      return;
    case CommOp::recv:
      defined(call, call.output, "the tensor");
      return;
    case CommOp::reduce_scatter:
      check_parts(call, defined(call, call.input, "input"), "input", defined(call, call.output, "output"), "output", n,
                  rank);
      return;
    case CommOp::all_gather:
      check_parts(call, defined(call, call.output, "output"), "output", defined(call, call.input, "input"), "input", n,
                  rank);
      return;
    case CommOp::gather:
      defined(call, call.input, "input");
      if (is_root)
        check_parts(call, defined(call, call.output, "output of the root"), "output", *call.input, "input", n, rank);
      return;
    case CommOp::scatter:
      defined(call, call.output, "output");
      if (is_root)
        check_parts(call, defined(call, call.input, "input of the root"), "input", *call.output, "output", n, rank);
      return;
    case CommOp::all_to_all: {
      const Tensor& input = defined(call, call.input, "input");
      const Tensor& output = defined(call, call.output, "output");
      check_parts(call, output, "output", input, "input", 1, -1);
      if (input.numel() % n != 0)
        refuse(call,
               fmt::format("{}, expected a multiple of the {}", counted(input.numel(), "element"), counted(n, "rank")));
      return;
    }
  }
  refuse(call, "unknown operation");
}

}  // namespace

const Tensor* part_of(const Collective& call) {
  const bool by_output = call.op == CommOp::reduce_scatter || call.op == CommOp::scatter;
  return by_output || call.input == nullptr ? call.output : call.input;
}

void check_collective(const Collective& call, int rank, int n) {
  check_tensors(call, rank, n);
  const bool message = call.op == CommOp::send || call.op == CommOp::recv;
  if ((has_root(call.op) || message) && (call.root < 0 || call.root >= n)) {
    refuse(call, fmt::format("{} {}, expected 0..{}", message ? "peer" : "root", call.root, n - 1));
  }
  if (message && call.root == rank) refuse(call, fmt::format("rank {} cannot exchange messages with itself", rank));
  if (!reduces(call.op)) return;
  if (static_cast<std::size_t>(call.reduce) > static_cast<std::size_t>(ReduceOp::product))
    refuse(call, "unknown reduction");
  const DType dtype = call.input->dtype();
  if (call.reduce == ReduceOp::avg && dtype != DType::f32 && dtype != DType::bf16) {
    refuse(call, fmt::format("avg of {}, expected f32 or bf16", name_of(dtype)));
  }
}

void check_spans(std::size_t outputs, std::size_t inputs) {
  if (outputs != inputs)
    throw ShapeError("comm", fmt::format("coalesced call with {} outputs and {} inputs", outputs, inputs));
}

}  // namespace dtrun::runtime
