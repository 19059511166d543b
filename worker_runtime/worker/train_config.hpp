// TrainConfig: everything `dtrun-worker train` can be told, as a value. One table of fields serves flags, --config
// files and reports.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/data/batch_stream.hpp"
#include "worker_runtime/worker/model_choice.hpp"

namespace dtrun::runtime {

struct TrainConfig {
  // model
  std::string model = "gpt2";  // or llama, or a Hugging Face directory
  std::int64_t layers = 4;
  std::int64_t hidden = 128;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 0;    // 0: as many as heads
  std::int64_t vocab_size = 0;  // 0: that of the tokenizer, 256 for bytes; .bin files need it
  std::int64_t seq_len = 128;
  std::string init;  // safetensors file, or a directory that holds model.safetensors or its parts
  // data
  std::vector<std::string> data;  // empty: the embedded text
  std::string tokenizer;          // directory with vocab.json and merges.txt; empty: text is bytes
  std::int64_t batch_size = 4;
  std::int64_t micro_batches = 1;
  std::string last_batch = "wrap";  // at the end of an epoch: or drop, pad
  // optimisation
  std::int64_t steps = 100;
  std::int64_t epochs = 0;  // 0: as many as steps take; else steps only limit when they were given
  double lr = 1e-3;
  std::int64_t warmup_steps = 0;
  double weight_decay = 0.01;
  double clip_norm = 1.0;
  std::int64_t seed = 0;
  double max_seconds = 0;  // 0: no limit
  // when numbers are wrong
  std::string on_nan = "stop";       // or skip, rollback
  std::int64_t max_skipped = 10;     // steps in a row
  std::int64_t check_replicas = -1;  // steps between comparisons; 0: none; -1: 100 on a CPU, else 0
  // layout
  std::string parallel;                        // dp=N, fsdp=N, tp=N and their products; empty: dp over all ranks
  std::int64_t zero = 0;                       // dp: stage of ZeRO
  std::string reshard_after_forward = "true";  // fsdp: "false" keeps parameters whole until backward; or a number
  std::string schedule = "1f1b";               // pp: or gpipe, interleaved
  std::int64_t virtual_stages = 0;             // pp: stages of each rank; 0: two with interleaved, else one
  std::string split;                           // pp: units with which stages begin, "h.3,h.6"; empty: by cost
  std::string recompute = "none";              // or "blocks": forward of blocks runs again before backward
  double bucket_mb = 25;                       // 0: unlimited
  std::string dtype = "f32";                   // that units compute in
  std::string param_dtype;                     // the same by torch's name; empty: as dtype
  std::string reduce_dtype = "f32";            // that gradients are sent in
  std::string device = "auto";
  std::string backend = "auto";
  bool comm_thread = false;
  double timeout = 300;  // seconds, of every wait for a peer
  // to go on later
  std::string checkpoint_dir;
  std::int64_t checkpoint_every = 100;  // steps; 0: only after the last one
  std::int64_t keep = 3;                // 0: all
  std::string resume = "auto";          // or none, or a checkpoint
  std::int64_t snapshot_every = -1;     // steps between states in memory, for restarts; -1: 1 on a CPU, else 0
  // output
  std::string save;    // safetensors of the final parameters
  std::string report;  // JSON
  std::string log_dir;
  bool show_sharding = false;  // every rank says which part of which parameter it has
  std::int64_t log_every = 0;  // steps between progress lines; 0: about twenty in all

  // Not for users: what a directory given as `model` says, and the keys that were set.
  std::optional<ModelChoice> of_directory;
  std::string directory_config;  // the text of its config.json
  std::set<std::string, std::less<>> given;

  std::int64_t bucket_bytes() const;
  // What last_batch says.
  LastBatch end_of_epoch() const;
  // Reads `model` when it is a directory: sizes are its own from then on, and a size that was set must agree. Throws
  // UsageError.
  void resolve_model();
  // The model with these sizes.
  ModelChoice model_choice(std::int64_t vocabulary) const;
  // The text of its config.json: that of the directory, with all that it says, or one that is made up.
  std::string model_config(std::int64_t vocabulary) const;
  // Throws UsageError naming the field, for values out of range and for what this version cannot do yet.
  void validate() const;

 private:
  void validate_model() const;
};

// What the user may set: key (with dashes), help, and where it goes.
struct ConfigField {
  std::string_view key;
  std::string_view help;
  bool is_flag = false;  // takes no value on the command line
  bool is_list = false;
  std::string type;           // "INT", "NUMBER", "TEXT", "TEXT ..."; empty for flags
  std::string default_value;  // as text; empty when there is none to show
};
const std::vector<ConfigField>& config_fields();

// Both throw UsageError: unknown key (with the nearest known one), wrong type, value that is not a number. `source` is
// what messages call the place, such as "--config run.json". '_' in keys counts as '-'.
void set_field(TrainConfig& config, std::string_view key, const std::vector<std::string>& values,
               std::string_view source);
void apply_json(TrainConfig& config, const nlohmann::json& object, std::string_view source);
// Reads and applies a JSON file.
void apply_config_file(TrainConfig& config, const std::string& path);
nlohmann::json to_json(const TrainConfig& config);

// " (did you mean \"seq-len\"?)", or nothing when no candidate is near.
std::string suggestion(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace dtrun::runtime
