// argv -> Command. The only place of the worker that includes CLI11.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker_runtime/worker/device_choice.hpp"
#include "worker_runtime/worker/train_config.hpp"

namespace dtrun::runtime {

struct BenchConfig {
  std::string op = "all_reduce";  // all_reduce, reduce_scatter, all_gather, broadcast, all_to_all or all
  std::int64_t min_bytes = 1024;
  std::int64_t max_bytes = std::int64_t{64} << 20;
  std::int64_t iterations = 0;  // 0: by size
  DeviceOptions device;
  double timeout = 60;
};

struct PlanConfig {
  int world_size = 1;
  int rank = 0;  // whose program is shown
};

struct TokenizeConfig {
  std::string tokenizer;
  std::vector<std::string> data;
  std::string out;
};

struct ConvertConfig {
  std::string from;                       // a checkpoint or a directory of them, a Hugging Face directory, a file
  std::string to;                         // directory to make
  std::string to_format;                  // hf or checkpoint; empty: what `from` is not
  std::optional<std::int64_t> max_shard;  // bytes of a weight file; nothing: 5 GB
  std::string dtype = "f32";              // of the weight files, or bf16
  bool overwrite = false;
};

struct Command {
  enum class Kind { train, hello, bench, plan, tokenize, convert, print };
  Kind kind = Kind::train;
  bool standalone = false;   // one process without a launcher
  bool default_run = false;  // the program was given no subcommand
  TrainConfig train;
  BenchConfig bench;
  DeviceOptions hello;
  PlanConfig plan;
  TokenizeConfig tokenize;
  ConvertConfig convert;
  std::string text;  // of Kind::print: help or version
};

// Throws UsageError.
Command parse_command_line(int argc, const char* const* argv);

// "64M" -> 67108864; suffixes K, M, G. Throws UsageError naming `label`.
std::int64_t parse_size(std::string_view label, std::string_view text);
// "5GB" -> 5000000000, as Hugging Face counts; "5GiB" and "5G" -> 5 << 30. Throws UsageError naming `label`.
std::int64_t parse_bytes(std::string_view label, std::string_view text);

}  // namespace dtrun::runtime
