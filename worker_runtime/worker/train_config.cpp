#include "worker_runtime/worker/train_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <variant>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "worker_runtime/worker/device_choice.hpp"
#include "worker_runtime/worker/json_file.hpp"

namespace dtrun::runtime {
namespace {

using nlohmann::json;
using Member = std::variant<std::int64_t TrainConfig::*, double TrainConfig::*, bool TrainConfig::*,
                            std::string TrainConfig::*, std::vector<std::string> TrainConfig::*>;

struct Entry {
  const char* key;
  Member member;
  const char* help;
};

// clang-format off
const Entry kEntries[] = {
    {"model", &TrainConfig::model, "gpt2, llama, or a Hugging Face directory of one of them: its sizes, and its weights when it has them"},
    {"layers", &TrainConfig::layers, "transformer blocks"},
    {"hidden", &TrainConfig::hidden, "width of the residual stream"},
    {"heads", &TrainConfig::heads, "attention heads; must divide --hidden"},
    {"kv-heads", &TrainConfig::kv_heads, "llama: heads of keys and values, which --heads share (default: as many)"},
    {"vocab-size", &TrainConfig::vocab_size, "vocabulary (default: that of --tokenizer, or 256: bytes; .bin data needs it)"},
    {"seq-len", &TrainConfig::seq_len, "tokens per sequence"},
    {"init", &TrainConfig::init, "start from this safetensors file, or from DIR/model.safetensors"},
    {"data", &TrainConfig::data, "text files (one token per byte, or see --tokenizer) or .bin files of 16-bit tokens, raw or of llm.c (default: a small embedded text)"},
    {"tokenizer", &TrainConfig::tokenizer, "directory with GPT-2's vocab.json and merges.txt: text becomes these tokens"},
    {"batch-size", &TrainConfig::batch_size, "sequences per data-parallel rank and micro-batch"},
    {"micro-batches", &TrainConfig::micro_batches, "micro-batches whose gradients are summed before the ranks sum"},
    {"last-batch", &TrainConfig::last_batch, "the last step of an epoch: wrap: filled with the beginning of the epoch, as PyTorch does; drop: left out when not full; pad: filled with samples that do not count"},
    {"steps", &TrainConfig::steps, "optimizer steps"},
    {"epochs", &TrainConfig::epochs, "steps until all data was seen so often, or --steps when that is less; 0: --steps alone counts"},
    {"lr", &TrainConfig::lr, "highest learning rate; falls to a tenth along a cosine"},
    {"warmup-steps", &TrainConfig::warmup_steps, "steps of linear warm-up"},
    {"weight-decay", &TrainConfig::weight_decay, "AdamW weight decay"},
    {"clip-norm", &TrainConfig::clip_norm, "largest gradient norm; 0: no clipping"},
    {"seed", &TrainConfig::seed, "of initial values and sample order"},
    {"max-seconds", &TrainConfig::max_seconds, "stop after this time (of each attempt), all ranks after the same step; 0: no limit"},
    {"on-nan", &TrainConfig::on_nan, "when loss or gradient norm are not finite: stop; skip: all ranks leave that update out; rollback: also return to the state of a few steps before (of --snapshot-every, default 10)"},
    {"max-skipped", &TrainConfig::max_skipped, "--on-nan skip: most such steps in a row; rollback: most returns that lead no further"},
    {"check-replicas", &TrainConfig::check_replicas, "steps between comparisons of what several ranks hold, which name the rank that differs; 0: none (default: 100 on a CPU, else 0)"},
    {"parallel", &TrainConfig::parallel, "layout of the ranks, such as pp=2,dp=2: dp=N; fsdp=N: parameters, gradients and optimizer state split, with dp=R in R replicas; tp=N: every layer cut, with sp between the cut layers the sequence; pp=N: stages of units (default: dp, all ranks)"},
    {"zero", &TrainConfig::zero, "dp: 1 splits the optimizer state, 2 gradients too; 0: neither"},
    {"reshard-after-forward", &TrainConfig::reshard_after_forward, "fsdp: true; false: parameters stay whole from forward to backward; N: in parts over N neighbours"},
    {"schedule", &TrainConfig::schedule, "pp: gpipe, 1f1b, or interleaved: several stages on each rank"},
    {"virtual-stages", &TrainConfig::virtual_stages, "pp with --schedule interleaved: stages of each rank (default: 2)"},
    {"split", &TrainConfig::split, "pp: units with which stages begin but the first, such as h.3,h.6 (default: by their cost)"},
    {"recompute", &TrainConfig::recompute, "none, or blocks: these keep their input only and run forward again before backward"},
    {"bucket-mb", &TrainConfig::bucket_mb, "size of gradient buckets in MiB; 0: one bucket for all"},
    {"dtype", &TrainConfig::dtype, "f32, or bf16: mixed precision; computes and gathers in bf16, sums and updates in f32"},
    {"param-dtype", &TrainConfig::param_dtype, "the same, by the name in PyTorch's MixedPrecisionPolicy (default: as --dtype)"},
    {"reduce-dtype", &TrainConfig::reduce_dtype, "f32 or bf16: what ranks send of gradients; sums are taken in f32, in rank order"},
    {"device", &TrainConfig::device, kDeviceHelp},
    {"backend", &TrainConfig::backend, kBackendHelp},
    {"comm-thread", &TrainConfig::comm_thread, "run collectives beside the computation, on a thread of their own"},
    {"timeout", &TrainConfig::timeout, "seconds to wait for a peer before giving up"},
    {"checkpoint-dir", &TrainConfig::checkpoint_dir, "where checkpoints are saved and looked for: one directory for all ranks and hosts"},
    {"checkpoint-every", &TrainConfig::checkpoint_every, "steps between checkpoints; 0: only after the last step, and when the run is stopped"},
    {"keep", &TrainConfig::keep, "newest checkpoints that stay; 0: all"},
    {"resume", &TrainConfig::resume, "auto: from the newest whole checkpoint of --checkpoint-dir, none, or the path of one; after a restart always from the run's own newest state"},
    {"snapshot-every", &TrainConfig::snapshot_every, "steps between states kept in memory, from which a restart goes on; 0: none (default: 1 on a CPU, when the launcher may restart)"},
    {"save", &TrainConfig::save, "write the final parameters to this safetensors file, or, when it ends with / or is a directory, as a Hugging Face directory"},
    {"report", &TrainConfig::report, "write a JSON report to this file"},
    {"log-dir", &TrainConfig::log_dir, "directory of <rank>/steps.jsonl (default: beside the launcher's logs, else a temporary directory)"},
    {"show-sharding", &TrainConfig::show_sharding, "print for every rank its part of each parameter"},
    {"log-every", &TrainConfig::log_every, "steps between progress lines; 0: about twenty lines in all"},
};
// clang-format on

std::string normalized(std::string_view key) {
  std::string result(key);
  std::ranges::replace(result, '_', '-');
  return result;
}

const Entry& find_entry(std::string_view key, std::string_view source) {
  const auto name = normalized(key);
  std::vector<std::string> known;
  for (const auto& entry : kEntries) {
    if (name == entry.key) return entry;
    known.emplace_back(entry.key);
  }
  throw UsageError("train", fmt::format("{}: unknown key \"{}\"{}", source, key, suggestion(name, known)));
}

// A flag is its own name; in a file the key says which value is meant. `value` comes quoted or as JSON.
UsageError wrong(std::string_view source, const char* key, std::string_view value, std::string_view expected) {
  const auto name = source == fmt::format("--{}", key) ? std::string(source) : fmt::format("{}: {}", source, key);
  return UsageError("train", fmt::format("{} is {}, expected {}", name, value, expected));
}

std::string in_quotes(std::string_view text) { return fmt::format("\"{}\"", text); }

double parse_number(std::string_view source, const char* key, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    throw wrong(source, key, in_quotes(text), "a number");
  }
  return value;
}

bool parse_bool(std::string_view source, const char* key, std::string_view text) {
  const auto word = env::lower(text);
  if (word == "true" || word == "1" || word == "on" || word == "yes") return true;
  if (word == "false" || word == "0" || word == "off" || word == "no") return false;
  throw wrong(source, key, in_quotes(text), "true or false");
}

std::vector<std::string> json_strings(const json& value, std::string_view source, const char* key) {
  std::vector<std::string> result;
  for (const auto& item : value.is_array() ? value : json::array({value})) {
    if (!item.is_string()) throw wrong(source, key, value.dump(), "text or a list of texts");
    result.push_back(item.get<std::string>());
  }
  return result;
}

void set_json(TrainConfig& config, const Entry& entry, const json& value, std::string_view source) {
  std::visit(
      [&](auto member) {
        auto& target = config.*member;
        using T = std::remove_reference_t<decltype(target)>;
        const auto expect = [&](bool good, std::string_view expected) {
          if (!good) throw wrong(source, entry.key, value.dump(), expected);
        };
        if constexpr (std::is_same_v<T, bool>) {
          expect(value.is_boolean(), "true or false");
          target = value.get<bool>();
        } else if constexpr (std::is_same_v<T, std::int64_t>) {
          expect(value.is_number_integer(), "a whole number");
          expect(!value.is_number_unsigned() || value.get<std::uint64_t>() <= std::uint64_t{1} << 62,
                 "a smaller number");
          target = value.get<std::int64_t>();
        } else if constexpr (std::is_same_v<T, double>) {
          expect(value.is_number(), "a number");
          target = value.get<double>();
        } else if constexpr (std::is_same_v<T, std::string>) {
          expect(value.is_string(), "text");
          target = value.get<std::string>();
        } else {
          target = json_strings(value, source, entry.key);
        }
      },
      entry.member);
}

void set_text(TrainConfig& config, const Entry& entry, const std::vector<std::string>& values,
              std::string_view source) {
  std::visit(
      [&](auto member) {
        auto& target = config.*member;
        using T = std::remove_reference_t<decltype(target)>;
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          target = values;
        } else {
          const std::string& text = values.back();
          if constexpr (std::is_same_v<T, bool>) {
            target = parse_bool(source, entry.key, text);
          } else if constexpr (std::is_same_v<T, std::int64_t>) {
            const auto value = env::parse_int(text);
            if (!value) throw wrong(source, entry.key, in_quotes(text), "a whole number");
            target = *value;
          } else if constexpr (std::is_same_v<T, double>) {
            target = parse_number(source, entry.key, text);
          } else {
            target = text;
          }
        }
      },
      entry.member);
}

ConfigField describe(const Entry& entry) {
  ConfigField field{entry.key, entry.help, false, false, {}, {}};
  const TrainConfig defaults;
  std::visit(
      [&](auto member) {
        const auto& value = defaults.*member;
        using T = std::remove_cvref_t<decltype(value)>;
        field.is_flag = std::is_same_v<T, bool>;
        field.is_list = std::is_same_v<T, std::vector<std::string>>;
        if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, double>) {
          field.type = std::is_same_v<T, double> ? "NUMBER" : "INT";
          field.default_value = fmt::format("{}", value);
        } else if constexpr (std::is_same_v<T, std::string>) {
          field.type = "TEXT";
          field.default_value = value;
        } else if constexpr (!std::is_same_v<T, bool>) {
          field.type = "TEXT ...";
        }
      },
      entry.member);
  // What these stand for is in the help: "by the data", "as many as heads", ...
  constexpr std::array kByOthers = {"vocab-size", "kv-heads", "virtual-stages", "snapshot-every", "check-replicas"};
  if (std::ranges::find(kByOthers, field.key) != kByOthers.end()) field.default_value.clear();
  return field;
}

}  // namespace

const std::vector<ConfigField>& config_fields() {
  static const auto fields = [] {
    std::vector<ConfigField> result;
    for (const auto& entry : kEntries) {
      result.push_back(describe(entry));
    }
    return result;
  }();
  return fields;
}

void set_field(TrainConfig& config, std::string_view key, const std::vector<std::string>& values,
               std::string_view source) {
  const auto& entry = find_entry(key, source);
  if (values.empty()) throw wrong(source, entry.key, in_quotes(""), "a value");
  // A variable of a script that is not set: nothing would be saved, and nobody told.
  constexpr std::array kPaths = {"data", "tokenizer", "init", "save", "report", "log-dir", "checkpoint-dir"};
  if (std::ranges::find(kPaths, entry.key) != kPaths.end() && std::ranges::find(values, "") != values.end())
    throw wrong(source, entry.key, in_quotes(""), "a path");
  set_text(config, entry, values, source);
  config.given.insert(entry.key);
}

void apply_json(TrainConfig& config, const json& object, std::string_view source) {
  if (!object.is_object())
    throw UsageError("train", fmt::format("{}: expected a JSON object of keys and values", source));
  for (const auto& [key, value] : object.items()) {
    const auto& entry = find_entry(key, source);
    set_json(config, entry, value, source);
    config.given.insert(entry.key);
  }
}

void apply_config_file(TrainConfig& config, const std::string& path) {
  const auto source = fmt::format("--config {}", path);
  apply_json(config, read_json_file(path, source), source);
}

json to_json(const TrainConfig& config) {
  json result = json::object();
  for (const auto& entry : kEntries) {
    std::visit([&](auto member) { result[entry.key] = config.*member; }, entry.member);
  }
  return result;
}

}  // namespace dtrun::runtime
