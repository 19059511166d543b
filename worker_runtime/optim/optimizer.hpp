// Optimizers work on flat pieces: a whole parameter, or whichever part of it this rank holds. Elementwise, so any split
// of a parameter gives the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/core/arena.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime {

// One piece: `value` and `grad` are f32 of equal size; the names of state tensors derive from `name`.
struct OptimizerPiece {
  std::string name;        // parameter name
  Tensor value;            // updated in place
  Tensor grad{};             // only read; may be left undefined until the first step, or rebound, with set_grad
  bool is_matrix = true;   // Parameter::is_matrix(), for decay of matrices only
  std::int64_t first = 0;  // index of the piece's first element inside the parameter, for checkpoints
};

// A tensor of optimizer state, for checkpoints: same size as the piece. `name` such as "wte.weight.exp_avg".
struct OptimizerState {
  std::string name;
  std::int64_t first = 0;
  Tensor tensor;
};

// Owned by the run, one thread. Throws ShapeError at construction when a piece does not fit together.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // One update with g = grad * grad_scale (the 1/(ranks * micro-batches) scale times the clip coefficient, applied
  // once).
  virtual void step(double lr, float grad_scale) = 0;
  virtual std::vector<OptimizerState> state() const = 0;

  std::vector<OptimizerPiece>& pieces() noexcept { return pieces_; }
  const std::vector<OptimizerPiece>& pieces() const noexcept { return pieces_; }
  void set_grad(std::size_t piece, Tensor grad);
  std::int64_t steps() const noexcept { return steps_; }
  void set_steps(std::int64_t steps) noexcept { steps_ = steps; }  // resume

 protected:
  explicit Optimizer(std::vector<OptimizerPiece> pieces);
  void check_grads() const;
  std::vector<Tensor> make_state(Arena& arena) const;
  void append_state(std::string_view suffix, const std::vector<Tensor>& tensors,
                    std::vector<OptimizerState>& states) const;

  std::vector<OptimizerPiece> pieces_;
  std::int64_t steps_ = 0;
};

}  // namespace dtrun::runtime
