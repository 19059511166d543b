#include <map>

#include "worker_runtime/nn/module.hpp"
#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

ModelDescription describe(const Model& model, int tp_rank) {
  ModelDescription result;
  std::map<const Parameter*, int> index;
  for (const Parameter* parameter : model.parameters()) {
    index.emplace(parameter, static_cast<int>(result.parameters.size()));
    const auto shape = parameter->local_shape(tp_rank < 0 ? parameter->cut_rank() : tp_rank);
    result.parameters.push_back({parameter->name(), shape.numel(), shape.rank() > 0 ? shape[0] : 1,
                                 parameter->cut().is_cut(), parameter->local_shape(0).numel()});
  }
  for (std::size_t i = 0; i < model.size(); ++i) {
    auto& unit = result.units.emplace_back();
    unit.name = model.unit(i).name();
    for (const Parameter* parameter : model.unit(i).parameters()) unit.parameters.push_back(index.at(parameter));
  }
  return result;
}

}  // namespace dtrun::runtime
