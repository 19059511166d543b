// Checkpoints and Hugging Face directories, from one to the other and back.
#include <fmt/format.h>

#include <bit>
#include <nlohmann/json.hpp>

#include "rendezvous/base/error.hpp"
#include "rendezvous/store/hash_store.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "tests/support/largest_file.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/checkpoint/checkpoint_loader.hpp"
#include "worker_runtime/checkpoint/checkpoint_writer.hpp"
#include "worker_runtime/worker/commands.hpp"
#include "worker_runtime/worker/model_choice.hpp"
#include "worker_runtime/worker/trainer.hpp"

using namespace dtrun::runtime;
using Catch::Contains;
using dtrun::test::expect;
using dtrun::test::run_ranks;
using dtrun::tests::TempDirectory;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

using Elements = std::map<std::string, std::vector<float>>;

struct Layout {
  std::string parallel;
  int world;
  std::int64_t zero = 0;
  std::int64_t micro_batches = 1;
};
const Layout kAlone{"", 1};
const Layout kLayouts[] = {kAlone,
                           {"dp=3", 3},
                           {"dp=3", 3, 1},
                           {"dp=2", 2, 2},
                           {"fsdp=3", 3},
                           {"dp=2,fsdp=2", 4},
                           {"tp=2", 2},
                           {"tp=2,sp", 2},
                           {"fsdp=2,tp=2", 4},
                           {"pp=2", 2, 0, 2},
                           {"pp=2,dp=2", 4, 0, 2},
                           {"pp=2,fsdp=2", 4, 0, 2},
                           {"pp=2,tp=2", 4, 0, 2}};

TrainConfig config_of(const std::string& model, const Layout& layout) {
  TrainConfig config;
  config.model = model;
  config.layers = 2;
  config.hidden = 24;
  config.heads = 4;
  if (model == "llama") config.kv_heads = 2;
  config.seq_len = 6;
  config.batch_size = 2;
  config.steps = 3;
  config.lr = 1e-2;
  config.resolve_model();
  config.parallel = layout.parallel;
  config.zero = layout.zero;
  config.micro_batches = layout.micro_batches;
  return config;
}

struct Start {
  fs::path resume = {};
  std::int64_t steps = 0;
  fs::path save_to = {};
};
struct Seen {
  std::vector<double> losses;
  std::uint64_t hash = 0;
};

// Trains some steps, from the checkpoint `resume` when there is one, and saves.
Seen train(const TrainConfig& config, int world, const Start& start) {
  const auto store = std::make_shared<dtrun::rendezvous::HashStore>();
  Seen seen;
  const auto texts = run_ranks(world, [&](ProcessGroup& group) {
    Trainer trainer(group, *group.account(), config);
    if (!start.resume.empty()) {
      const auto choice = open_checkpoint(start.resume, group);
      trainer.restore(choice.meta, "the checkpoint",
                      [&](std::span<const StatePiece> pieces) { load_checkpoint(*choice.path, pieces); });
    }
    std::vector<double> losses;
    const auto last = trainer.finished_steps() + start.steps;
    const auto want_stop = [&] { return trainer.finished_steps() + 1 >= last; };
    if (start.steps > 0)
      trainer.run(want_stop, [&](const StepRecord& record) { losses.push_back(record.result.loss); });
    if (!start.save_to.empty()) {
      CheckpointOptions options{.directory = start.save_to, .rank = group.rank(), .world = group.size()};
      if (group.size() > 1) options.store = store;
      CheckpointWriter writer(options);
      writer.save(trainer.state_meta("a job"), trainer.state());
      for (const auto& outcome : writer.wait()) expect(outcome.error.empty(), outcome.error);
    }
    const auto hash = trainer.parameter_hash();
    if (group.rank() == 0) seen = {losses, hash};
  });
  REQUIRE(texts == std::vector<std::string>(texts.size()));
  return seen;
}

// The parameters in the weight files of a directory.
Elements weights_in(const fs::path& directory) {
  Elements result;
  for (const auto& file : weight_files(directory.string())) {
    const SafetensorsReader reader(file);
    for (const auto& [name, entry] : reader.entries()) {
      const auto tensor = Tensor::on_host(entry.shape, DType::f32);
      reader.read(name, tensor);
      result[name].assign(tensor.span<float>().begin(), tensor.span<float>().end());
    }
  }
  return result;
}

void convert(const fs::path& from, const fs::path& to, const std::function<void(ConvertConfig&)>& change = {}) {
  ConvertConfig config;
  config.from = from.string();
  config.to = to.string();
  if (change) change(config);
  run_convert(config);
}

json config_in(const fs::path& directory) { return json::parse(dtrun::tests::read_file(directory / "config.json")); }

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

// A directory with one checkpoint, in "checkpoints".
struct Saved {
  explicit Saved(const std::string& model = "gpt2", const Layout& layout = kAlone, std::int64_t steps = 1)
      : seen(train(config_of(model, layout), layout.world,
                   {.steps = steps, .save_to = directory.file("checkpoints")})) {}
  fs::path at(const std::string& name) const { return directory.path() / name; }

  TempDirectory directory;
  Seen seen;
};

}  // namespace

TEST_CASE("a checkpoint of any layout becomes a Hugging Face directory and a checkpoint again, bit by bit") {
  const std::string model = GENERATE("gpt2", "llama");
  for (const auto& layout : kLayouts) {
    CAPTURE(model, layout.parallel, layout.zero);
    const Saved saved(model, layout, 2);
    convert(saved.at("checkpoints"), saved.at("hf"));
    CHECK(names_in(saved.at("hf")) == std::vector<std::string>{"config.json", "model.safetensors"});
    // As the directory says what the model is, its parameters are those of the run.
    const auto config = config_of(saved.at("hf").string(), kAlone);
    CHECK(train(config, 1, {}).hash == saved.seen.hash);
    convert(saved.at("hf"), saved.at("again"));
    CHECK(names_in(saved.at("again")) == std::vector<std::string>{"latest", "step_00000000"});
    CHECK(train(config_of(model, kAlone), 1, {.resume = saved.at("again")}).hash == saved.seen.hash);
    convert(saved.at("again"), saved.at("hf2"));
    CHECK(saved.directory.read("hf2/model.safetensors") == saved.directory.read("hf/model.safetensors"));
    CHECK(config_in(saved.at("hf2")) == config_in(saved.at("hf")));
  }
}

TEST_CASE("a run starts from a converted checkpoint under any layout as it does from the directory") {
  const Saved saved("gpt2", {"fsdp=2", 2}, 2);
  convert(saved.at("checkpoints"), saved.at("hf"));
  convert(saved.at("hf"), saved.at("start"));
  for (const auto& layout : kLayouts) {
    CAPTURE(layout.parallel, layout.zero);
    const auto from_directory = train(config_of(saved.at("hf").string(), layout), layout.world, {.steps = 2});
    const auto resumed = train(config_of("gpt2", layout), layout.world,
                               {.resume = saved.at("start"), .steps = 2, .save_to = saved.at("on")});
    CHECK(resumed.losses == from_directory.losses);
    CHECK(resumed.hash == from_directory.hash);
    // It has optimizer state now.
    CHECK(train(config_of("gpt2", kAlone), 1, {.resume = saved.at("on")}).hash == resumed.hash);
  }
}

TEST_CASE("large models come in parts, which hold the same") {
  const Saved saved("llama");
  convert(saved.at("checkpoints"), saved.at("whole"));
  convert(saved.at("checkpoints"), saved.at("parts"), [](ConvertConfig& config) { config.max_shard = 20'000; });
  const auto files = weight_files(saved.at("parts").string());
  REQUIRE(files.size() > 2);
  CHECK(fs::path(files[0]).filename() == fmt::format("model-00001-of-{:05}.safetensors", files.size()));
  const auto whole = weights_in(saved.at("whole"));
  CHECK(weights_in(saved.at("parts")) == whole);
  std::size_t bytes = 0;
  for (const auto& [name, values] : whole) bytes += values.size() * sizeof(float);
  const auto index = json::parse(saved.directory.read("parts/model.safetensors.index.json"));
  CHECK(index["metadata"]["total_size"] == bytes);
  CHECK(index["weight_map"].size() == whole.size());
  for (const auto& file : files) {
    const SafetensorsReader reader(file);
    CHECK(reader.metadata().at("format") == "pt");
    std::uint64_t size = 0;
    for (const auto& [name, entry] : reader.entries()) {
      size += entry.bytes;
      CHECK(index["weight_map"][name] == fs::path(file).filename().string());
    }
    CHECK((size <= 20'000 || reader.entries().size() == 1));
  }
  convert(saved.at("parts"), saved.at("back"), [](ConvertConfig& config) { config.to_format = "hf"; });
  CHECK(saved.directory.read("back/model.safetensors") == saved.directory.read("whole/model.safetensors"));
}

TEST_CASE("weights in bf16 are the nearest, and config.json says the type") {
  const Saved saved;
  convert(saved.at("checkpoints"), saved.at("f32"));
  convert(saved.at("checkpoints"), saved.at("bf16"), [](ConvertConfig& config) { config.dtype = "bf16"; });
  CHECK(config_in(saved.at("f32"))["torch_dtype"] == "float32");
  CHECK(config_in(saved.at("bf16"))["torch_dtype"] == "bfloat16");
  const SafetensorsReader reader(saved.directory.file("bf16/model.safetensors"));
  CHECK(reader.entry("wte.weight").dtype == "BF16");
  const auto exact = weights_in(saved.at("f32")), rounded = weights_in(saved.at("bf16"));
  for (const auto& [name, values] : exact) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(values[i]);
      const auto nearest = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
      REQUIRE(rounded.at(name)[i] == std::bit_cast<float>(nearest));
    }
  }
}

TEST_CASE("what a Hugging Face directory has beside its weights survives the way through a run") {
  const Saved saved("llama");
  convert(saved.at("checkpoints"), saved.at("model"));
  auto config = config_in(saved.at("model"));
  config["bos_token_id"] = 1;
  config["max_position_embeddings"] = 77;
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 64}};
  config["something_new"] = {1, 2};
  saved.directory.write("model/config.json", config.dump());
  saved.directory.write("model/tokenizer.json", "{\"a\": 1}");
  saved.directory.write("model/generation_config.json", "{}");
  saved.directory.write("model/README.md", "not ours");
  train(config_of(saved.at("model").string(), kAlone), 1, {.steps = 1, .save_to = saved.at("more")});
  convert(saved.at("more"), saved.at("out"));
  CHECK(config_in(saved.at("out")) == config);
  CHECK(names_in(saved.at("out")) ==
        std::vector<std::string>{"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"});
  CHECK(saved.directory.read("out/tokenizer.json") == "{\"a\": 1}");
  convert(saved.at("out"), saved.at("start"));
  convert(saved.at("start"), saved.at("out2"));
  CHECK(config_in(saved.at("out2")) == config);
  CHECK(names_in(saved.at("out2")) == names_in(saved.at("out")));
}

TEST_CASE("ids of a GPT-2 vocabulary are in config.json, and otherwise none are") {
  const Saved saved;
  convert(saved.at("checkpoints"), saved.at("plain"));
  CHECK(config_in(saved.at("plain"))["eos_token_id"].is_null());
  saved.directory.write("plain/vocab.json", R"({"a": 0, "<|endoftext|>": 255})");
  saved.directory.write("plain/merges.txt", "#version: 0.2\n");
  convert(saved.at("plain"), saved.at("out"), [](ConvertConfig& config) { config.to_format = "hf"; });
  CHECK(config_in(saved.at("out"))["eos_token_id"] == 255);
  CHECK(config_in(saved.at("out"))["bos_token_id"] == 255);
  CHECK(fs::exists(saved.at("out") / "merges.txt"));
}

TEST_CASE("a safetensors file becomes a checkpoint, and a model that is not known only weights") {
  const Saved saved;
  convert(saved.at("checkpoints"), saved.at("hf"));
  fs::create_directory(saved.at("alone"));
  fs::copy(saved.at("hf") / "model.safetensors", saved.at("alone") / "any.safetensors");
  convert(saved.at("alone") / "any.safetensors", saved.at("start"));
  CHECK(train(config_of("gpt2", kAlone), 1, {.resume = saved.at("start")}).hash == saved.seen.hash);
  convert(saved.at("start"), saved.at("weights"));
  CHECK(names_in(saved.at("weights")) == std::vector<std::string>{"model.safetensors"});
  CHECK(weights_in(saved.at("weights")) == weights_in(saved.at("hf")));
}

TEST_CASE("a damaged checkpoint is passed over, or refused when it was named") {
  const Saved saved("gpt2", kAlone, 1);
  train(config_of("gpt2", kAlone), 1,
        {.resume = saved.at("checkpoints"), .steps = 1, .save_to = saved.at("checkpoints")});
  const auto newest = saved.at("checkpoints") / "step_00000002";
  REQUIRE(fs::exists(newest));
  auto bytes = dtrun::tests::read_file(newest / "rank_00000.safetensors");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  saved.directory.write("checkpoints/step_00000002/rank_00000.safetensors", bytes);
  CHECK_THROWS_WITH(convert(newest, saved.at("out")), Contains("rank_00000.safetensors") && Contains("damaged"));
  CHECK_FALSE(fs::exists(saved.at("out")));
  convert(saved.at("checkpoints"), saved.at("out"));
  CHECK(train(config_of(saved.at("out").string(), kAlone), 1, {}).hash == saved.seen.hash);
}

TEST_CASE("sources and targets that cannot be are refused, and nothing is left") {
  const Saved saved;
  const auto before = names_in(saved.directory.path());
  const auto refused = [&](const fs::path& from, const std::string& to, const std::string& text,
                           const std::function<void(ConvertConfig&)>& change = {}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(convert(from, to, change), Contains(text));
    CHECK_THROWS_AS(convert(from, to, change), dtrun::UsageError);
    CHECK(names_in(saved.directory.path()) == before);
  };
  const auto out = saved.directory.file("out");
  refused(saved.at("absent"), out, "which is not there");
  refused(saved.directory.path() / ".", out, "holds no checkpoint");
  refused(saved.at("checkpoints"), "", "expected a directory to make");
  refused("", out, "which is not there");
  refused(saved.at("checkpoints"), saved.directory.file("no/where"), "there is no directory");
  refused(saved.at("checkpoints"), saved.directory.file("checkpoints/latest"), "which is a file");
  refused(saved.at("checkpoints"), saved.directory.file("checkpoints"), "--overwrite replaces it");
  refused(saved.at("checkpoints"), saved.directory.file("checkpoints"), "\"step_00000001\" is none of the files",
          [](ConvertConfig& config) { config.overwrite = true; });
  refused(saved.at("checkpoints"), out, "checkpoints are", [](ConvertConfig& config) {
    config.to_format = "checkpoint";
    config.dtype = "bf16";
  });
  refused(saved.at("checkpoints"), out, "--max-shard-size", [](ConvertConfig& config) {
    config.to_format = "checkpoint";
    config.max_shard = 1000;
  });
}

TEST_CASE("a target is replaced as a whole, when asked to, and leftovers of killed converts go") {
  const Saved saved;
  const auto overwrite = [](ConvertConfig& config) { config.overwrite = true; };
  fs::create_directory(saved.at("out"));  // empty: as good as none
  fs::create_directory(saved.at(".out.new_killed"));
  fs::create_directory(saved.at(".other.new_one"));
  saved.directory.write(".out.new_killed/model.safetensors", "half");
  convert(saved.at("checkpoints"), saved.directory.file("out/"),
          [](ConvertConfig& config) { config.max_shard = 9'000; });
  CHECK_FALSE(fs::exists(saved.at(".out.new_killed")));
  CHECK(fs::exists(saved.at(".other.new_one")));
  CHECK(fs::exists(saved.at("out") / "model.safetensors.index.json"));
  CHECK((fs::status(saved.at("out")).permissions() & fs::perms::owner_all) == fs::perms::owner_all);
  CHECK_THROWS_AS(convert(saved.at("checkpoints"), saved.at("out")), dtrun::UsageError);
  fs::create_directory_symlink("out", saved.at("link"));
  convert(saved.at("checkpoints"), saved.at("link"), overwrite);
  CHECK(fs::is_symlink(saved.at("link")));
  CHECK(names_in(saved.at("out")) == std::vector<std::string>{"config.json", "model.safetensors"});
  convert(saved.at("out"), saved.at("out"), overwrite);  // what it was made of
  CHECK(names_in(saved.at("out")) == std::vector<std::string>{"latest", "step_00000000"});
  convert(saved.at("out"), saved.at("out"), overwrite);
  CHECK(train(config_of(saved.at("out").string(), kAlone), 1, {}).hash == saved.seen.hash);
  saved.directory.write("out/notes.txt", "mine");
  CHECK_THROWS_WITH(convert(saved.at("checkpoints"), saved.at("out"), overwrite), Contains("\"notes.txt\""));
  CHECK(saved.directory.entries() == 4);  // checkpoints, out, link, .other
}

TEST_CASE("a disk that is full while it is converted costs nothing that was there") {
  const Saved saved;
  convert(saved.at("checkpoints"), saved.at("out"));
  const auto before = saved.directory.read("out/model.safetensors");
  const std::string format = GENERATE("hf", "checkpoint");
  const auto to = [&](ConvertConfig& config) {
    config.overwrite = true;
    config.to_format = format;
  };
  for (const rlim_t bytes : {100, 20'000}) {
    const dtrun::tests::LargestFile limit(bytes);
    CHECK_THROWS_WITH(convert(saved.at("checkpoints"), saved.at("out"), to), Contains("File too large"));
    CHECK_THROWS_WITH(convert(saved.at("checkpoints"), saved.at("new"), to), Contains("File too large"));
  }
  CHECK(saved.directory.read("out/model.safetensors") == before);
  CHECK(names_in(saved.directory.path()) == std::vector<std::string>{"checkpoints", "out"});
  convert(saved.at("checkpoints"), saved.at("out"), to);
}

TEST_CASE("weights that are not those of config.json are refused by name") {
  const Saved saved("llama");
  convert(saved.at("checkpoints"), saved.at("hf"));
  auto config = config_in(saved.at("hf"));
  config["intermediate_size"] = 32;
  saved.directory.write("hf/config.json", config.dump());
  CHECK_THROWS_WITH(convert(saved.at("hf"), saved.at("out")), Contains("gate_proj.weight is [64, 24]"));
  config["intermediate_size"] = 64;
  config["num_hidden_layers"] = 3;
  saved.directory.write("hf/config.json", config.dump());
  CHECK_THROWS_WITH(convert(saved.at("hf"), saved.at("out")), Contains("lacks 9 of") && Contains("layers.2"));
  saved.directory.write("hf/config.json", R"({"model_type": "bert"})");
  CHECK_THROWS_WITH(convert(saved.at("hf"), saved.at("out")), Contains("model_type is \"bert\""));
  CHECK_FALSE(fs::exists(saved.at("out")));
}
