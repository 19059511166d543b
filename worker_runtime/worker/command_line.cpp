#include "worker_runtime/worker/command_line.hpp"

#include <CLI/CLI.hpp>
#include <map>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

constexpr auto kFooter =
    "Under dtrun or torchrun the place of this rank comes from the environment (RANK, WORLD_SIZE, MASTER_ADDR, ...):\n"
    "  dtrun --nproc-per-node=4 worker\n"
    "  dtrun --nproc-per-node=4 worker train --data book.txt --steps 500 --lr 1e-3\n"
    "Without a launcher: dtrun-worker train --standalone ...";

using Given = std::map<std::string, std::vector<std::string>>;

// Flags only record what was written; the table of fields gives it meaning, after the file of --config.
void add_train_options(CLI::App& app, Given& given, std::string& config_file) {
  app.add_option("--config", config_file,
                 "JSON file of the same keys; a flag beats the file, the file beats the default")
      ->type_name("FILE");
  for (const auto& field : config_fields()) {
    const std::string key(field.key);
    const auto name = "--" + key;
    if (field.is_flag) {
      app.add_flag_callback(
          name, [&given, key] { given[key] = {"true"}; }, std::string(field.help));
      continue;
    }
    auto* option = app.add_option_function<std::vector<std::string>>(
        name, [&given, key](const std::vector<std::string>& values) { given[key] = values; }, std::string(field.help));
    option->type_name(field.type);
    if (!field.default_value.empty()) option->default_str(field.default_value);
    if (field.is_list) {
      option->expected(1, CLI::detail::expected_max_vector_size);
    } else {
      // One word, and not those behind it as well, as CLI11 takes for anything that goes into a vector.
      option->expected(1)->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
  }
}

void add_device_options(CLI::App& app, DeviceOptions& options) {
  app.add_option("--device", options.device, kDeviceHelp)
      ->capture_default_str()
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kDeviceWords), std::end(kDeviceWords))));
  app.add_option("--backend", options.backend, kBackendHelp)->capture_default_str();
}

void add_bench_options(CLI::App& app, BenchConfig& bench) {
  app.add_option("--op", bench.op, "all_reduce, reduce_scatter, all_gather, broadcast, all_to_all or all")
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--min-bytes", [&bench](const std::string& text) { bench.min_bytes = parse_size("--min-bytes", text); },
         "smallest message, such as 1K")
      ->type_name("SIZE")
      ->default_str("1K");
  app.add_option_function<std::string>(
         "--max-bytes", [&bench](const std::string& text) { bench.max_bytes = parse_size("--max-bytes", text); },
         "largest message, such as 64M")
      ->type_name("SIZE")
      ->default_str("64M");
  app.add_option("--iterations", bench.iterations, "per size; 0: by size")->capture_default_str();
  add_device_options(app, bench.device);
  app.add_option("--timeout", bench.timeout, "seconds to wait for a peer before giving up")->capture_default_str();
}

void add_tokenize_options(CLI::App& app, TokenizeConfig& tokenize) {
  app.add_option("--tokenizer", tokenize.tokenizer, "directory with GPT-2's vocab.json and merges.txt")
      ->type_name("DIR")
      ->required();
  app.add_option("--data", tokenize.data, "text files, one after the other")->type_name("TEXT")->required();
  app.add_option("--out", tokenize.out, "file of 16-bit tokens (raw, as nanoGPT has them)")
      ->type_name("FILE.bin")
      ->required();
}

void add_convert_options(CLI::App& app, ConvertConfig& convert) {
  app.add_option(
         "--from", convert.from,
         "a checkpoint, or a directory of them: the newest whole one; a Hugging Face directory; a safetensors file")
      ->required();
  app.add_option("--to", convert.to, "directory to make")->required();
  app.add_option("--to-format", convert.to_format, "hf or checkpoint (default: what --from is not)")
      ->check(CLI::IsMember({"hf", "checkpoint"}));
  app.add_option_function<std::string>(
         "--max-shard-size",
         [&convert](const std::string& text) { convert.max_shard = parse_bytes("--max-shard-size", text); },
         "hf: largest weight file")
      ->type_name("SIZE")
      ->default_str("5GB");
  app.add_option("--dtype", convert.dtype, "hf: of the weights, f32 or bf16")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16"}));
  app.add_flag("--overwrite", convert.overwrite, "replace what an earlier convert made there");
}

// Written before the word that it belongs to, or without it.
bool is_train_option(const std::string& key) {
  return std::ranges::any_of(config_fields(), [&](const auto& field) { return field.key == key; });
}

// CLI11 names unknown options only as a list; ours come with the nearest known one.
[[noreturn]] void throw_unknown(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  if (word.starts_with("-")) {
    for (const auto* at = &app; at != nullptr; at = at->get_parent()) {
      for (const auto* option : at->get_options()) known.push_back("--" + option->get_single_name());
    }
    auto key =
        word.substr(word.find_first_not_of('-') == std::string::npos ? word.size() : word.find_first_not_of('-'));
    std::ranges::replace(key, '_', '-');
    key = key.substr(0, key.find('='));
    if (is_train_option(key)) {
      throw UsageError("worker",
                       "--" + key + " is an option of train and belongs after it: worker train --" + key + " ...");
    }
    throw UsageError("worker", "unknown option \"" + word + "\"" + suggestion("--" + key, known));
  }
  for (const auto* sub : app.get_subcommands({})) known.push_back(sub->get_name());
  throw UsageError("worker", "unexpected \"" + word + "\"" + suggestion(word, known));
}

// "--seq_len=3" is "--seq-len=3"; values keep their underscores.
std::vector<std::string> normalized(int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (int i = argc - 1; i > 0; --i) {
    std::string word = argv[i];
    if (word.starts_with("--")) {
      const auto end = word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size()));
      std::replace(word.begin(), end, '_', '-');
    }
    words.push_back(word);
  }
  return words;  // CLI11 takes them from the back
}

TrainConfig build_train_config(const Given& given, const std::string& config_file, TrainConfig config) {
  if (!config_file.empty()) apply_config_file(config, config_file);
  for (const auto& [key, values] : given) set_field(config, key, values, "--" + key);
  config.resolve_model();
  config.validate();
  return config;
}

// What `worker` alone trains: small enough for a minute on two cores, large enough to learn.
TrainConfig default_run() {
  TrainConfig config;
  config.steps = 120;
  config.lr = 2e-3;
  config.warmup_steps = 10;
  config.max_seconds = 50;
  return config;
}

}  // namespace

Command parse_command_line(int argc, const char* const* argv) {
  Command command;
  Given given;
  std::string config_file;
  CLI::App app("dtrun-worker: trains a GPT. Without a subcommand: a small one, on an embedded text.", "dtrun-worker");
  app.footer(kFooter);
  app.require_subcommand(0, 1);
  app.fallthrough();
  app.allow_extras();
  app.add_flag("--standalone", command.standalone, "run as a single process, without a launcher");
  bool version = false;
  app.add_flag("--version", version, "print the version");
  auto* train = app.add_subcommand("train", "train a model");
  add_train_options(*train, given, config_file);
  auto* hello = app.add_subcommand("hello", "print the map of ranks, meet at a barrier, end");
  add_device_options(*hello, command.hello);
  auto* bench = app.add_subcommand("bench", "measure collectives");
  add_bench_options(*bench, command.bench);
  auto* plan = app.add_subcommand("plan", "print and check what train would do, for any number of ranks");
  add_train_options(*plan, given, config_file);
  plan->add_option("--world-size", command.plan.world_size, "ranks")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  plan->add_option("--rank", command.plan.rank, "whose program is shown")->capture_default_str();
  auto* tokenize = app.add_subcommand("tokenize", "turn text files into one file of tokens, for --data");
  add_tokenize_options(*tokenize, command.tokenize);
  auto* convert =
      app.add_subcommand("convert", "make a Hugging Face directory of a checkpoint, or the other way round");
  add_convert_options(*convert, command.convert);
  for (auto* sub : {train, hello, bench, plan, tokenize, convert}) sub->allow_extras();
  try {
    app.parse(normalized(argc, argv));
  } catch (const CLI::CallForHelp&) {
    command.kind = Command::Kind::print;
    command.text = app.help();
    return command;
  } catch (const CLI::ParseError& error) {
    throw UsageError("worker", error.what());
  }
  const CLI::App* active = app.get_subcommands().empty() ? &app : app.get_subcommands().front();
  const auto rest = app.remaining(true);
  if (!rest.empty()) throw_unknown(*active, rest.front());
  if (version) {
    command.kind = Command::Kind::print;
    command.text = "dtrun-worker " DTRUN_VERSION "\n";
    return command;
  }
  if (hello->parsed()) command.kind = Command::Kind::hello;
  if (bench->parsed()) command.kind = Command::Kind::bench;
  if (tokenize->parsed()) command.kind = Command::Kind::tokenize;
  if (plan->parsed()) command.kind = Command::Kind::plan;
  if (convert->parsed()) command.kind = Command::Kind::convert;
  command.default_run = !train->parsed() && command.kind == Command::Kind::train;
  command.train = build_train_config(given, config_file, command.default_run ? default_run() : TrainConfig{});
  return command;
}

}  // namespace dtrun::runtime
