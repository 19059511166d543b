#include "worker_runtime/worker/data_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/data/bpe_tokenizer.hpp"
#include "worker_runtime/data/embedded_text.hpp"

namespace dtrun::runtime {

TokenDataset open_dataset(const TrainConfig& config) {
  std::optional<BpeTokenizer> tokenizer;
  if (!config.tokenizer.empty()) tokenizer = BpeTokenizer::from_directory(config.tokenizer);
  auto* const with = tokenizer ? &*tokenizer : nullptr;
  if (config.data.empty()) return TokenDataset::from_text(embedded_text(), config.seq_len, "the embedded text", with);
  const std::vector<std::filesystem::path> paths(config.data.begin(), config.data.end());
  return TokenDataset::from_files(paths, config.seq_len, with);
}

std::int64_t choose_vocab_size(const TrainConfig& config, const TokenDataset& dataset) {
  const auto of_data = dataset.vocab_size();
  if (!config.tokenizer.empty() && config.vocab_size > 0 && config.vocab_size < of_data) {
    throw UsageError("train", fmt::format("the vocabulary of the model has {} tokens, --tokenizer has {}",
                                          config.vocab_size, of_data));
  }
  if (config.vocab_size > 0) return config.vocab_size;
  if (of_data > 0) return of_data;
  throw UsageError("train", ".bin data needs --vocab-size");
}

BatchPlan batch_plan(const TrainConfig& config, const MeshAxes& axes, std::int64_t vocab_size) {
  return {config.batch_size,
          axes.data_ranks(),
          config.micro_batches,
          vocab_size,
          static_cast<std::uint64_t>(config.seed),
          true,
          config.end_of_epoch()};
}

std::int64_t steps_of_run(const TrainConfig& config, const BatchStream& batches) {
  if (config.epochs == 0) return config.steps;
  const auto of_epochs = batches.first_step_of(config.epochs);
  const auto steps = config.given.contains("steps") ? std::min(config.steps, of_epochs) : of_epochs;
  if (config.warmup_steps > steps) {
    throw UsageError("train", fmt::format("--warmup-steps is {}, expected 0 to {}: {} epochs have no more steps",
                                          config.warmup_steps, steps, config.epochs));
  }
  return steps;
}

}  // namespace dtrun::runtime
