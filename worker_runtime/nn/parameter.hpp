// Parameter: a named, trainable array. It owns no memory: the parallel layer binds a tensor for compute while its unit
// runs, and a tensor for the gradient before backward, wherever it wants them (an arena, a flat buffer, a shared-memory
// bucket).
#pragma once

#include <cstdint>
#include <string>

#include "worker_runtime/autograd/node.hpp"
#include "worker_runtime/core/shape.hpp"
#include "worker_runtime/nn/tensor_cut.hpp"
#include "worker_runtime/ops/random.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime {

// Initial values: a pure function of (seed, parameter name, element index), so they do not depend on the rank, the
// layout or the order in which parameters are made.
struct Init {
  enum class Kind : std::uint8_t { zeros, ones, normal };
  Kind kind = Kind::zeros;
  float stddev = 0;  // normal, with mean 0

  static constexpr Init zeros() { return {Kind::zeros, 0}; }
  static constexpr Init ones() { return {Kind::ones, 0}; }
  static constexpr Init normal(float stddev) { return {Kind::normal, stddev}; }
};

// What a parameter is to the module that made it, for parallelize().
struct ParameterRole {
  enum class Kind : std::uint8_t { other, weight, bias };  // of a linear layer
  Kind kind = Kind::other;
  int in_dim = -1, out_dim = -1;
  int blocks = 1;          // LinearOptions::fused
  std::int64_t heads = 0;  // LinearOptions::heads
};

// Owned by a unit (the first one that uses it; tied units borrow it). One thread.
class Parameter {
 public:
  Parameter(std::string name, const Shape& shape, Init init);
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string& name() const noexcept { return name_; }  // Hugging Face name, such as h.0.attn.c_attn.weight
  const Shape& shape() const noexcept { return shape_; }      // global, whatever the layout
  std::int64_t numel() const noexcept { return shape_.numel(); }
  const Init& init() const noexcept { return init_; }
  bool is_matrix() const noexcept { return shape_.rank() >= 2; }

  // --- tensor parallelism: the part of a rank (nn/parallelize.hpp); all of it by default ---
  const ParameterRole& role() const noexcept { return role_; }
  void set_role(const ParameterRole& role) { role_ = role; }
  const TensorCut& cut() const noexcept { return cut_; }
  // Before anything is bound.
  void set_cut(const TensorCut& cut, int rank);
  int cut_rank() const noexcept { return cut_rank_; }
  Shape local_shape() const { return local_shape(cut_rank_); }
  Shape local_shape(int rank) const { return cut_.local_shape(shape_, rank); }
  std::int64_t local_numel() const { return local_shape().numel(); }

  // --- compute view: bound while the unit runs (UNSHARD), dropped afterwards (RESHARD) ---
  // Throws ShapeError when nothing is bound: the parameter is used while sharded.
  const Tensor& value() const;
  bool has_value() const noexcept { return value_.defined(); }
  // `value` must be f32, or bf16 to compute with (RunContext::dtype), and have local_shape(), or, for others than
  // nodes, shape().
  void bind_value(Tensor value);
  void release_value() noexcept { value_ = Tensor(); }

  // --- gradient slot: one whole, fresh gradient per micro-batch ---
  // Gives the place where the next micro-batch's gradient goes, and marks it empty; the old content is overwritten,
  // never added to. The executor binds before each backward: the bucket itself for micro-batch 0, scratch for the
  // others, then bucket += scratch.
  void bind_grad(Tensor grad);
  void release_grad() noexcept;
  // Marks the slot empty without changing where it is.
  void clear_grad() noexcept { grad_filled_ = false; }
  // Whether the slot holds a (possibly still partial: tied) gradient of this micro-batch.
  bool has_grad() const noexcept { return grad_filled_; }
  // The slot as bound; meaningful elements only when has_grad(). Throws ShapeError when nothing is bound.
  const Tensor& grad() const;

  // --- for nodes, in backward_weight ---
  struct GradSlot {
    Tensor tensor;  // shape of value()
    bool
        accumulate;  // false: overwrite. true: an earlier use in this micro-batch (tied weights) is in there, add to it
  };
  // The place for a contribution; the slot counts as filled from now on. Throws ShapeError when nothing is bound.
  GradSlot grad_slot();

  // Initial values of whichever shard a rank holds; `where` says which elements of the whole parameter `out` is:
  // element `first` of the rank's part and those behind it.
  void fill_initial(std::uint64_t seed, const Tensor& out, ops::GlobalIndex where) const;
  void fill_initial(std::uint64_t seed, const Tensor& out) const { fill_initial(seed, out, global_index()); }
  ops::GlobalIndex global_index(std::int64_t first = 0) const { return cut_.global_index(shape_, cut_rank_, first); }

 private:
  std::string name_;
  Shape shape_;
  Init init_;
  ParameterRole role_;
  TensorCut cut_;
  int cut_rank_ = 0;
  Tensor value_;
  Tensor grad_;
  bool grad_filled_ = false;
};

// For nodes whose kernel can only overwrite: tensor() is where the contribution goes, commit() adds it to an earlier
// one if there is one.
class GradTarget {
 public:
  GradTarget(RunContext& ctx, Parameter& parameter);
  const Tensor& tensor() const noexcept { return tensor_; }
  void commit();

 private:
  Parameter::GradSlot slot_;
  Tensor tensor_;
};

}  // namespace dtrun::runtime
