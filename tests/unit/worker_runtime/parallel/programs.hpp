// Small model descriptions for tests of the step program.
#pragma once

#include <vector>

#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime::testing {

// embedding (table, positions), two blocks of two parameters, head (norm, tied table).
inline ModelDescription tiny_model() {
  ModelDescription model;
  model.parameters = {{"table", 100}, {"positions", 20}, {"h.0.w", 40}, {"h.0.b", 4},
                      {"h.1.w", 40},  {"h.1.b", 4},      {"norm", 4}};
  model.units = {{"embedding", {0, 1}}, {"h.0", {2, 3}}, {"h.1", {4, 5}}, {"head", {6, 0}}};
  return model;
}

inline std::vector<Program> compile_all(const ModelDescription& model, const ParallelConfig& config) {
  std::vector<Program> programs;
  for (int rank = 0; rank < config.axes.world_size(); ++rank) programs.push_back(compile(model, config, rank));
  return programs;
}

}  // namespace dtrun::runtime::testing
