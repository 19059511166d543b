// The program around a model: command line, place among the ranks, data, training, reports, exit code. dtrun-worker is
// this function; a program with a model of its own is this function and a factory.
#pragma once

#include "worker_runtime/worker/trainer.hpp"

namespace dtrun::runtime {

// For main(): the exit code. `own_model` makes the model of `train` and of the default run instead of --model; it is
// called on every rank, more than once, and must give the same model each time.
int worker_main(int argc, char** argv, const ModelFactory& own_model = {});

}  // namespace dtrun::runtime
