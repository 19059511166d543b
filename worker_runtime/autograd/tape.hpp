// Tape: the nodes that one unit ran for one micro-batch, in order. Backward walks them from the end.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "worker_runtime/autograd/node.hpp"

namespace dtrun::runtime {

// A tensor that a tape knows, as it flows through forward. Cheap to copy; valid with its own tape only.
class Value {
 public:
  Value() = default;
  const Tensor& tensor() const noexcept { return tensor_; }
  const Shape& shape() const noexcept { return tensor_.shape(); }
  bool defined() const noexcept { return tensor_.defined(); }

 private:
  friend class Tape;
  Value(Tensor tensor, int index) : tensor_(std::move(tensor)), index_(index) {}
  Tensor tensor_;
  int index_ = -1;
};

// Any number of tapes may be alive at once (several micro-batches in flight). One thread. The protocol per tape:
//   x = input(activation); ... apply(...) ...; finish(y);  then  backward(grad)  or  backward_input(grad), later
//   backward_weight().
// Backward frees what the nodes kept as it goes. Calls out of this order are reported by DTRUN_ASSERT or ShapeError.
class Tape {
 public:
  enum class Mode { training, inference };  // inference: nodes are dropped after forward

  explicit Tape(RunContext& ctx, Mode mode = Mode::training);
  Tape(Tape&&) noexcept;
  Tape& operator=(Tape&&) noexcept;
  ~Tape();

  RunContext& context() const noexcept { return *ctx_; }
  bool training() const noexcept { return mode_ == Mode::training; }

  // The activation that enters the unit; its gradient is what backward returns. May be undefined (first unit).
  Value input(const Tensor& activation);
  // Runs `node` on `inputs` and records it.
  Value record(std::unique_ptr<Node> node, std::initializer_list<Value> inputs);
  template <class NodeType, class... Args>
  Value apply(std::initializer_list<Value> inputs, Args&&... args) {
    return record(std::make_unique<NodeType>(std::forward<Args>(args)...), inputs);
  }
  // Names the result of the unit.
  void finish(const Value& output);

  // Gradient of the input, from the gradient of the result. `grad_out` undefined: the result is a scalar and its
  // gradient is 1. Parameter gradients go to their slots. Returns an undefined tensor when the input was undefined.
  Tensor backward(const Tensor& grad_out);
  // The same in two phases: the first keeps what the second needs. Bitwise equal to backward().
  Tensor backward_input(const Tensor& grad_out);
  void backward_weight();

  // Sums over the nodes run so far.
  double flops() const noexcept { return flops_; }
  std::size_t saved_bytes() const noexcept { return saved_bytes_; }
  std::size_t size() const noexcept;

 private:
  struct Entry;
  Tensor run_backward(const Tensor& grad_out, bool with_weights);
  Tensor checked_grad(const Tensor& grad_out) const;

  RunContext* ctx_;
  Mode mode_;
  std::vector<Entry> entries_;
  std::vector<bool> wanted_;  // by value: whether backward needs its gradient
  int input_ = -1;
  int output_ = -1;
  Shape output_shape_;
  bool finished_ = false;
  bool backward_done_ = false;
  double flops_ = 0;
  std::size_t saved_bytes_ = 0;
};

}  // namespace dtrun::runtime
