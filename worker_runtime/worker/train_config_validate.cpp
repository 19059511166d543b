#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "worker_runtime/nn/gpt2.hpp"
#include "worker_runtime/worker/device_choice.hpp"
#include "worker_runtime/worker/train_config.hpp"

namespace dtrun::runtime {
namespace {

void expect(bool good, std::string_view key, const std::string& value, std::string_view expected) {
  if (!good) throw UsageError("train", fmt::format("--{} is \"{}\", expected {}", key, value, expected));
}

void expect_range(std::string_view key, std::int64_t value, std::int64_t low, std::int64_t high) {
  expect(value >= low && value <= high, key, fmt::format("{}", value), fmt::format("{} to {}", low, high));
}

// A word that is fine now, one that a later version will understand, or nonsense.
void expect_word(std::string_view key, const std::string& value, std::vector<std::string> now,
                 const std::vector<std::string>& later) {
  for (const auto& word : now) {
    if (value == word) return;
  }
  for (const auto& word : later) {
    if (value == word) throw UsageError("train", fmt::format("--{} {} is not supported yet", key, value));
  }
  const auto wanted = fmt::format("{}{}", fmt::join(now, " or "), suggestion(value, now));
  expect(false, key, value, wanted);
}

}  // namespace

std::int64_t TrainConfig::bucket_bytes() const {
  if (bucket_mb == 0) return std::numeric_limits<std::int64_t>::max();
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::llround(bucket_mb * (1 << 20))));
}

LastBatch TrainConfig::end_of_epoch() const {
  if (last_batch == "drop") return LastBatch::drop;
  return last_batch == "pad" ? LastBatch::pad : LastBatch::wrap;
}

void TrainConfig::validate_model() const {
  if (of_directory) {  // was checked when it was read
    if (const auto* gpt2 = std::get_if<GPT2Config>(&*of_directory))
      expect_range("seq-len", seq_len, 1, gpt2->n_positions);
    return;
  }
  const auto text = [](std::int64_t value) { return fmt::format("{}", value); };
  const bool llama = model == "llama";
  expect(llama || model == "gpt2", "model", model,
         "gpt2, llama or a directory with a config.json" + suggestion(model, {"gpt2", "llama"}));
  expect_range("layers", layers, 1, GPT2Config::kMostLayers);
  expect_range("hidden", hidden, 1, GPT2Config::kMostWidth);
  expect_range("heads", heads, 1, hidden);
  expect(hidden % heads == 0, "heads", text(heads), fmt::format("a divisor of --hidden {}", hidden));
  if (llama) {
    expect(hidden / heads % 2 == 0, "heads", text(heads),
           fmt::format("heads of an even width, as rotary positions turn pairs; --hidden is {}", hidden));
    expect_range("kv-heads", kv_heads, 0, heads);
    expect(kv_heads == 0 || heads % kv_heads == 0, "kv-heads", text(kv_heads),
           fmt::format("a divisor of --heads {}", heads));
  } else {
    expect(kv_heads == 0 || kv_heads == heads, "kv-heads", text(kv_heads), "it with --model llama only");
  }
}

void TrainConfig::validate() const {
  constexpr std::int64_t kMany = std::int64_t{1} << 31;
  validate_model();
  expect_word("dtype", dtype, {"f32", "bf16"}, {});
  if (!param_dtype.empty()) expect_word("param-dtype", param_dtype, {"f32", "bf16"}, {});
  expect_word("reduce-dtype", reduce_dtype, {"f32", "bf16"}, {});
  expect_word("device", device, {std::begin(kDeviceWords), std::end(kDeviceWords)}, {});
  expect_word("backend", backend, {"auto", "shm", "gloo", "nccl"}, {});
  require_fitting({device, backend});
  if (const auto ways = env::parse_int(reshard_after_forward)) {
    expect_range("reshard-after-forward", *ways, 1, 1 << 20);
  } else {
    expect_word("reshard-after-forward", reshard_after_forward, {"true", "false", "a number of ranks"}, {});
  }
  expect_range("zero", zero, 0, 2);
  expect_word("schedule", schedule, {"gpipe", "1f1b", "interleaved"}, {});
  expect_word("recompute", recompute, {"none", "blocks"}, {});
  expect_range("virtual-stages", virtual_stages, 0, 1 << 10);
  expect_range("vocab-size", vocab_size, 0, GPT2Config::kMostVocabulary);
  expect_range("seq-len", seq_len, 1, GPT2Config::kMostPositions);
  expect_range("batch-size", batch_size, 1, 1 << 20);
  expect_range("micro-batches", micro_batches, 1, 1 << 20);
  expect_range("steps", steps, 1, std::int64_t{1} << 40);
  expect_range("epochs", epochs, 0, kMany);
  if (epochs == 0 || given.contains("steps")) expect_range("warmup-steps", warmup_steps, 0, steps);
  expect_word("last-batch", last_batch, {"wrap", "drop", "pad"}, {});
  expect_range("seed", seed, 0, std::numeric_limits<std::int64_t>::max());
  expect_range("log-every", log_every, 0, kMany);
  expect_range("checkpoint-every", checkpoint_every, 0, kMany);
  expect_range("keep", keep, 0, 1'000'000);
  expect_range("snapshot-every", snapshot_every, -1, kMany);
  expect_word("on-nan", on_nan, {"stop", "skip", "rollback"}, {});
  expect_range("max-skipped", max_skipped, 0, kMany);
  expect_range("check-replicas", check_replicas, -1, kMany);
  expect(!resume.empty(), "resume", resume, "auto, none, or the path of a checkpoint");
  expect(lr >= 0, "lr", fmt::format("{}", lr), "0 or more");
  expect(weight_decay >= 0, "weight-decay", fmt::format("{}", weight_decay), "0 or more");
  expect(clip_norm >= 0, "clip-norm", fmt::format("{}", clip_norm), "0 or more");
  expect(max_seconds >= 0, "max-seconds", fmt::format("{}", max_seconds), "0 or more");
  expect(bucket_mb >= 0 && bucket_mb <= 1e6, "bucket-mb", fmt::format("{}", bucket_mb), "0 to 1000000");
  expect(timeout > 0 && timeout <= 1e6, "timeout", fmt::format("{}", timeout), "a number of seconds above 0");
}

}  // namespace dtrun::runtime
