// The subcommands of dtrun-worker. Each runs one job to its end; errors are exceptions, for main to report.
#pragma once

#include "worker_runtime/worker/command_line.hpp"
#include "worker_runtime/worker/device_choice.hpp"
#include "worker_runtime/worker/environment.hpp"
#include "worker_runtime/worker/trainer.hpp"

namespace dtrun::runtime {

void run_hello(const WorkerEnvironment& environment, const DeviceOptions& options = {});
void run_bench(const WorkerEnvironment& environment, const BenchConfig& config);
// Prints; throws Error when the programs do not fit together.
void run_plan(const TrainConfig& config, const PlanConfig& plan, const ModelFactory& own = {});
// Writes the file and prints what it has.
void run_tokenize(const TokenizeConfig& config);
// Reads a checkpoint or a Hugging Face directory and writes the other, whole or not at all. Throws UsageError, Error.
void run_convert(const ConvertConfig& config);
void run_train(const WorkerEnvironment& environment, const TrainConfig& config, bool default_run,
               const ModelFactory& own = {});

}  // namespace dtrun::runtime
