// Stochastic gradient descent with momentum and L2 weight decay, as torch.optim.SGD without dampening.
#pragma once

#include "worker_runtime/optim/optimizer.hpp"

namespace dtrun::runtime {

struct SGDConfig {
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;

  void validate() const;  // throws UsageError
};

// g += wd * p;  b = momentum * b + g (b = g at the first step);  p -= lr * (nesterov ? g + momentum * b : b).
// State (momentum_buffer) exists only with momentum.
class SGD final : public Optimizer {
 public:
  SGD(const SGDConfig& config, std::vector<OptimizerPiece> pieces, Arena& arena);
  void step(double lr, float grad_scale) override;
  std::vector<OptimizerState> state() const override;

 private:
  SGDConfig config_;
  std::vector<Tensor> buffers_;
};

}  // namespace dtrun::runtime
