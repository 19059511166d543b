// Node: one coarse operation of a tape (linear, layernorm, attention, ...), with its forward and its two backward
// parts. A custom operation is one class derived from Node; models record nodes through Tape::apply and write forward
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "worker_runtime/autograd/lay.hpp"
#include "worker_runtime/core/arena.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime {

class TensorParallel;

// What a node may use while it runs. Borrowed by every tape of a rank; one thread.
struct RunContext {
  Arena& activation;                          // results of forward and what is saved for backward
  Arena& work;                                // gradients of activations, and temporaries
  TensorParallel* tensor_parallel = nullptr;  // the ranks that share every layer, when there are several
  // Every result of a node, every gradient of an activation and what nodes keep of such tensors are bfloat16 numbers;
  // sums inside an operation are f32.
  bool bf16 = false;
  // With bf16: their tensors are of that type, as on a device. Otherwise they are f32, and rounded where a tensor of
  // bf16 would be stored: the bits are the same.
  bool stores_bf16 = false;
  // A mean loss is over all rows of a batch, not over those with a target: a batch may have none.
  bool loss_over_all_rows = false;

  // Of results, gradients of activations and what is kept of them. What is f32 always: a loss, numbers of rows (mean,
  // logarithm of a sum), gradients of parameters.
  DType dtype() const noexcept { return stores_bf16 ? DType::bf16 : DType::f32; }
  // For such a tensor that was just written. Tapes do it for results and gradients, nodes for what is between them.
  void round(const Tensor& x) const;
};

// The gradient of one input of a node while backward runs.
struct InputGrad {
  bool needed = false;  // nobody asks for it otherwise: leave `result` undefined
  Tensor addend;  // what later nodes already gave to the same value; undefined when nothing. Others may read it: do not
                  // write
  Tensor result;  // to be set: addend + own contribution

  // result = addend + contribution. Takes `contribution` over: give a fresh tensor, or with `shared` one that others
  // may read. Where there is an addend, it is rounded (RunContext::round) first: what others read is that already.
  void deliver(RunContext& ctx, Tensor contribution, bool shared = false);
  // For kernels that add into their output: a tensor that holds `addend` and may be written (addend itself when nobody
  // else holds it). Only when addend is defined.
  Tensor take_addend(RunContext& ctx);
};

// Owned by one tape, used by one thread, for one forward and one backward. Sums inside a node have a fixed order, so
// the same inputs give the same bits. A node keeps Parameters, never their tensors: it asks for the compute view each
// time it runs.
class Node {
 public:
  Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  virtual ~Node() = default;

  virtual std::string_view name() const = 0;
  // Computes the result into a fresh tensor of ctx.activation (or a view of an input) and keeps what backward needs.
  virtual Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) = 0;
  // Sets grads[i].result for every needed input. grad_out has the shape of the result and must not be written.
  virtual void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) = 0;
  // Gives the gradients of the node's parameters to their slots (Parameter::grad_slot). Reads what forward kept and
  // grad_out only.
  virtual void backward_weight(RunContext& ctx, const Tensor& grad_out);
  // Both parts at once; override where one pass does both. Same bits as the two parts.
  virtual void backward(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads);
  virtual bool has_weights() const { return false; }
  // Only a node that says more than `all` is given values that are cut over ranks.
  virtual Reach reach() const { return Reach::all; }
  // A loss is more exact than bf16 has room for.
  virtual bool result_stays_f32() const { return false; }

  // Floating point operations of forward, valid after forward. Backward costs the same per part that exists.
  virtual double flops() const { return 0; }
  // Bytes kept for backward beyond the inputs and parameters, valid after forward.
  virtual std::size_t bytes() const { return 0; }
};

}  // namespace dtrun::runtime
