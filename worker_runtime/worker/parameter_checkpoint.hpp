// A checkpoint of parameters alone, which a run starts from as it starts from the seed.
#pragma once

#include <filesystem>
#include <string>

#include "worker_runtime/worker/weights.hpp"

namespace dtrun::runtime {

// Writes step_00000000/, of one file, into an empty directory. Returns what it wrote, for people. Throws Error,
// SystemError.
std::string write_parameter_checkpoint(const Weights& weights, const std::filesystem::path& directory);
// Whether a step_ directory is such a checkpoint; not when it cannot be read.
bool holds_parameters_only(const std::filesystem::path& step_directory);

}  // namespace dtrun::runtime
