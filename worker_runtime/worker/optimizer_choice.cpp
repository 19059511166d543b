#include "worker_runtime/worker/optimizer_choice.hpp"

#include <utility>

#include "worker_runtime/optim/adamw.hpp"

namespace dtrun::runtime {

OptimizerFactory optimizer_factory(const TrainConfig& config) {
  AdamWConfig adamw;
  adamw.weight_decay = config.weight_decay;
  return [adamw](std::vector<OptimizerPiece> pieces, Arena& arena) {
    return std::make_unique<AdamW>(adamw, std::move(pieces), arena);
  };
}

}  // namespace dtrun::runtime
