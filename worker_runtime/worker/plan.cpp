// dtrun-worker plan: what a run would do, for any number of ranks, without one.
#include <fmt/format.h>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/data/bpe_tokenizer.hpp"
#include "worker_runtime/parallel/plan_text.hpp"
#include "worker_runtime/parallel/sharding_text.hpp"
#include "worker_runtime/worker/commands.hpp"
#include "worker_runtime/worker/optimizer_choice.hpp"
#include "worker_runtime/worker/parallel_choice.hpp"
#include "worker_runtime/worker/run_inputs.hpp"

namespace dtrun::runtime {
namespace {

// Data is not opened.
std::int64_t vocabulary_of(const TrainConfig& config) {
  if (config.vocab_size > 0) return config.vocab_size;
  return config.tokenizer.empty() ? 256 : BpeTokenizer::from_directory(config.tokenizer).vocab_size();
}

}  // namespace

void run_plan(const TrainConfig& config, const PlanConfig& plan, const ModelFactory& own) {
  if (plan.rank < 0 || plan.rank >= plan.world_size)
    throw UsageError("plan", fmt::format("--rank is {}, expected 0 to {}", plan.rank, plan.world_size - 1));
  const auto vocabulary = vocabulary_of(config);
  auto model = model_of_run(config, vocabulary, own);
  const auto parallel = parallel_config(config, plan.world_size);
  cut_over_tp(model, parallel.axes, plan.rank);
  const auto programs = compile_all(model, parallel, batch_shape(config));
  const auto& program = programs[static_cast<std::size_t>(plan.rank)];
  if (config.show_sharding) fmt::print("{}", sharding_text(model, program));
  fmt::print("{}",
             plan_text(programs, plan.rank, dry_run(model, program, batch_shape(config), optimizer_factory(config))));
  if (!check(programs).ok()) throw Error("plan", "the programs do not fit together (a bug of dtrun)");
}

}  // namespace dtrun::runtime
