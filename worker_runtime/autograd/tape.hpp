// Tape: the nodes that one unit ran for one micro-batch, in order. Backward walks them from the end.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <map>
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
  const Lay& lay() const noexcept { return lay_; }

 private:
  friend class Tape;
  Value(Tensor tensor, int index, Lay lay) : tensor_(std::move(tensor)), index_(index), lay_(lay) {}
  Tensor tensor_;
  int index_ = -1;
  Lay lay_;
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
  Value input(const Tensor& activation, Lay lay = {});
  // Runs `node` on `inputs` and records it. The result lies as the inputs do; throws UsageError when they lie otherwise
  // than the node may be given (Node::reach), or differently.
  Value record(std::unique_ptr<Node> node, std::initializer_list<Value> inputs);
  template <class NodeType, class... Args>
  Value apply(std::initializer_list<Value> inputs, Args&&... args) {
    return record(std::make_unique<NodeType>(std::forward<Args>(args)...), inputs);
  }
  // For a node that knows cut values: it takes any, and its result lies as `lay` says.
  template <class NodeType, class... Args>
  Value apply_as(Lay lay, std::initializer_list<Value> inputs, Args&&... args) {
    return record_as(lay, std::make_unique<NodeType>(std::forward<Args>(args)...), inputs);
  }
  // The value that `make` gives for `of`, made when it is first asked for: what several nodes need is sent once.
  template <class Make>
  Value once(const Value& of, Make&& make) {
    auto& made = made_[of.index_];
    if (!made.defined()) made = make();
    return made;
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
  Value record_as(Lay lay, std::unique_ptr<Node> node, std::initializer_list<Value> inputs);
  Tensor run_backward(const Tensor& grad_out, bool with_weights);
  Tensor checked_grad(const Tensor& grad_out) const;

  RunContext* ctx_;
  Mode mode_;
  std::vector<Entry> entries_;
  std::vector<bool> wanted_;   // by value: whether backward needs its gradient
  std::map<int, Value> made_;  // by value, until finish()
  int input_ = -1;
  int output_ = -1;
  Shape output_shape_;
  bool finished_ = false;
  bool backward_done_ = false;
  double flops_ = 0;
  std::size_t saved_bytes_ = 0;
};

}  // namespace dtrun::runtime
