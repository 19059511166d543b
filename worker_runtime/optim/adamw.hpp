// AdamW (Loshchilov & Hutter 2019) with the semantics and defaults of torch.optim.AdamW.
#pragma once

#include "worker_runtime/optim/optimizer.hpp"

namespace dtrun::runtime {

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool decay_matrices_only = false;  // as in torch every parameter decays; true spares biases and norms

  void validate() const;  // throws UsageError
};

// p -= lr * wd * p;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  p -= lr / (1-b1^t) * m / (sqrt(v) / sqrt(1-b2^t) +
// eps). State (exp_avg, exp_avg_sq) starts at zero and lives in `arena`.
class AdamW final : public Optimizer {
 public:
  AdamW(const AdamWConfig& config, std::vector<OptimizerPiece> pieces, Arena& arena);
  void step(double lr, float grad_scale) override;
  std::vector<OptimizerState> state() const override;

 private:
  AdamWConfig config_;
  std::vector<Tensor> exp_avg_;
  std::vector<Tensor> exp_avg_sq_;
};

}  // namespace dtrun::runtime
