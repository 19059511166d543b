// Which part of which parameter a rank has, as text for people (--show-sharding).
#pragma once

#include <string>

#include "worker_runtime/nn/module.hpp"
#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

// `program` is of the rank for which the model was cut (parallelize). One line for each parameter: the whole shape,
// then for tp and fsdp the range of the dimension that is cut, and the shape of what is left.
std::string sharding_text(const Model& model, const Program& program);

}  // namespace dtrun::runtime
