// Hugging Face directories as --model.
#include <nlohmann/json.hpp>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "tests/support/local_model.hpp"
#include "worker_runtime/comm/single_group.hpp"
#include "worker_runtime/worker/command_line.hpp"
#include "worker_runtime/worker/json_file.hpp"
#include "worker_runtime/worker/trainer.hpp"

using namespace dtrun::runtime;
using Catch::Contains;
using dtrun::tests::TempDirectory;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

json llama_json() {
  return {{"model_type", "llama"},
          {"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 300},
          {"hidden_size", 24},
          {"intermediate_size", 40},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 8},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"tie_word_embeddings", true},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 2048},
          {"rope_scaling", nullptr},
          {"torch_dtype", "bfloat16"},
          {"initializer_range", 0.125},
          {"attention_bias", false}};
}

json gpt2_json() {
  return {{"model_type", "gpt2"},
          {"vocab_size", 300},
          {"n_positions", 16},
          {"n_embd", 24},
          {"n_layer", 2},
          {"n_head", 3},
          {"n_inner", nullptr},
          {"resid_pdrop", 0.1},
          {"activation_function", "gelu_new"},
          {"n_ctx", 16},
          {"layer_norm_epsilon", 1e-5}};
}

json with(json object, const char* key, const json& value) {
  object[key] = value;
  return object;
}

ModelChoice read(const json& object) { return read_hugging_face_config(object, "config.json"); }

TrainConfig parse(std::vector<const char*> words) {
  words.insert(words.begin(), {"dtrun-worker", "train"});
  return parse_command_line(static_cast<int>(words.size()), words.data()).train;
}

// Trains one step of nothing: the hash of what training starts from.
std::uint64_t start_hash(TrainConfig config) {
  config.lr = config.weight_decay = 0;
  config.steps = 1;
  config.batch_size = 1;
  config.seq_len = 8;
  MemoryAccount account;
  check_inputs(config, 1, 1);
  const auto group = create_single_group({});
  Trainer trainer(*group, account, config);
  trainer.run([] { return false; }, [](const StepRecord&) {});
  return trainer.parameter_hash();
}

}  // namespace

TEST_CASE("config.json of a Llama, of both generations of transformers") {
  const auto llama = std::get<LlamaConfig>(read(llama_json()));
  CHECK(llama.vocab_size == 300);
  CHECK(llama.hidden_size == 24);
  CHECK(llama.inner() == 40);
  CHECK(llama.num_hidden_layers == 2);
  CHECK(llama.num_attention_heads == 4);
  CHECK(llama.kv_heads() == 2);
  CHECK(llama.dim_of_head() == 8);
  CHECK(llama.rms_norm_eps == 1e-5F);
  CHECK(llama.rope_theta == 500000);
  CHECK(llama.initializer_range == 0.125F);
  CHECK(llama.tie_word_embeddings);
  auto newer = llama_json();
  for (const char* key : {"rope_theta", "num_key_value_heads", "head_dim", "tie_word_embeddings"}) newer.erase(key);
  newer["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1234.5}};
  const auto other = std::get<LlamaConfig>(read(newer));
  CHECK(other.rope_theta == 1234.5);
  CHECK(other.rope_scaling.factor == 1);
  const auto scaled = std::get<LlamaConfig>(read(with(llama_json(), "rope_scaling",
                                                      {{"rope_type", "llama3"},
                                                       {"factor", 32.0},
                                                       {"low_freq_factor", 2.0},
                                                       {"high_freq_factor", 5.0},
                                                       {"original_max_position_embeddings", 4096}})));
  CHECK(scaled.rope_scaling.factor == 32);
  CHECK(scaled.rope_scaling.low_frequency == 2);
  CHECK(scaled.rope_scaling.high_frequency == 5);
  CHECK(scaled.rope_scaling.original_positions == 4096);
  CHECK(scaled.rope_theta == 500000);
  CHECK(other.kv_heads() == 4);
  CHECK(other.dim_of_head() == 6);
  CHECK_FALSE(other.tie_word_embeddings);
}

TEST_CASE("config.json of a GPT-2") {
  const auto gpt2 = std::get<GPT2Config>(read(gpt2_json()));
  CHECK(gpt2.n_positions == 16);
  CHECK(gpt2.n_head == 3);
  CHECK(gpt2.inner() == 96);
  CHECK(std::get<GPT2Config>(read(with(gpt2_json(), "n_inner", 50))).inner() == 50);
}

TEST_CASE("what a config.json asks for and is not carried out is refused, with the field") {
  const std::vector<std::pair<json, std::string>> rows = {
      {with(llama_json(), "model_type", "mistral"), "model_type is \"mistral\", expected \"gpt2\" or \"llama\""},
      {with(llama_json(), "hidden_act", "gelu"), "hidden_act is \"gelu\", expected \"silu\""},
      {with(llama_json(), "attention_bias", true), "attention_bias is true, expected false"},
      {with(llama_json(), "rope_scaling", {{"rope_type", "yarn"}, {"factor", 8.0}}),
       "rope_scaling: rope_type is \"yarn\""},
      {with(llama_json(), "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}),
       "rope_scaling: there is no low_freq_factor"},
      {with(llama_json(), "rope_scaling",
            {{"rope_type", "llama3"},
             {"factor", 8.0},
             {"low_freq_factor", 4.0},
             {"high_freq_factor", 1.0},
             {"original_max_position_embeddings", 8192}}),
       "low frequency 4, high frequency 1"},
      {with(llama_json(), "rope_scaling", {{"type", "linear"}}), "type is \"linear\""},
      {with(llama_json(), "num_hidden_layers", "two"), "num_hidden_layers is \"two\", expected a whole number"},
      {with(llama_json(), "num_hidden_layers", nullptr), "there is no num_hidden_layers"},
      {with(llama_json(), "vocab_size", std::uint64_t{1} << 63), "a whole number"},
      {with(llama_json(), "num_key_value_heads", 3), "num_key_value_heads: 3, expected a divisor"},
      {with(llama_json(), "rope_theta", "x"), "rope_theta is \"x\", expected a number"},
      {with(llama_json(), "tie_word_embeddings", 1), "tie_word_embeddings is 1, expected true or false"},
      {with(gpt2_json(), "tie_word_embeddings", false), "tie_word_embeddings is false, expected true"},
      {with(gpt2_json(), "activation_function", "relu"), "activation_function is \"relu\""},
      {with(gpt2_json(), "n_head", 7), "n_head: 7"},
      {json::array(), "expected a JSON object"},
      {json::object(), "model_type is \"\""}};
  for (const auto& [object, text] : rows) {
    CAPTURE(text);
    CHECK_THROWS_WITH(read(object), Contains("config.json: ") && Contains(text));
    CHECK_THROWS_AS(read(object), dtrun::UsageError);
  }
}

TEST_CASE("the option --model DIR takes the sizes of the directory, and flags must agree with it") {
  const TempDirectory directory;
  directory.write("config.json", llama_json().dump());
  const auto path = directory.path().string();
  const auto config = parse({"--model", path.c_str(), "--seq-len", "12"});
  CHECK(config.layers == 2);
  CHECK(config.hidden == 24);
  CHECK(config.heads == 4);
  CHECK(config.kv_heads == 2);
  CHECK(config.vocab_size == 300);
  CHECK(config.seq_len == 12);
  CHECK(std::get<LlamaConfig>(config.model_choice(1)).head_dim == 8);
  CHECK(parse({"--model", path.c_str(), "--layers", "2"}).layers == 2);
  CHECK_THROWS_WITH(parse({"--model", path.c_str(), "--layers", "3"}),
                    Contains("--layers is \"3\", the model in") && Contains("has 2"));
  CHECK_THROWS_WITH(parse({"--model", path.c_str(), "--kv-heads", "4"}), Contains("--kv-heads is \"4\""));
  TrainConfig again;  // the report of a run is a configuration again
  apply_json(again, to_json(config), "report");
  again.resolve_model();
  again.validate();
  CHECK(to_json(again) == to_json(config));

  directory.write("config.json", gpt2_json().dump());
  CHECK(parse({"--model", path.c_str()}).seq_len == 16);  // its n_positions, less than the default
  CHECK_THROWS_WITH(parse({"--model", path.c_str(), "--seq-len", "17"}), Contains("--seq-len is \"17\""));
  directory.write("config.json", "{");
  CHECK_THROWS_WITH(parse({"--model", path.c_str()}), Contains("config.json: line 1") && Contains("not JSON"));
  fs::remove(directory.path() / "config.json");
  CHECK_THROWS_WITH(parse({"--model", path.c_str()}), Contains("config.json: there is no such file"));
}

TEST_CASE("weights come from the directory, whole or in parts, --init beats them, without them the seed decides") {
  const TempDirectory directory;
  directory.write("config.json", llama_json().dump());
  const auto path = directory.path().string();
  const auto config = parse({"--model", path.c_str()});
  CHECK(initial_weights(config).empty());
  const auto from_seed = start_hash(config);

  const testing::LocalModel other(make_model(config.model_choice(300)), 99);
  write_safetensors((directory.path() / "model.safetensors").string(), other.values());
  CHECK(initial_weights(config) == path);
  const auto whole = start_hash(config);
  CHECK(whole != from_seed);

  // The same in two files, as large models are kept.
  std::vector<NamedTensor> parts[2];
  json index = {{"metadata", json::object()}, {"weight_map", json::object()}};
  const char* const names[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
  for (std::size_t i = 0; i < other.values().size(); ++i) {
    parts[i % 2].push_back(other.values()[i]);
    index["weight_map"][other.values()[i].name] = names[i % 2];
  }
  fs::rename(directory.path() / "model.safetensors", directory.path() / "other.safetensors");
  for (int i : {0, 1}) write_safetensors((directory.path() / names[i]).string(), parts[i]);
  directory.write("model.safetensors.index.json", index.dump());
  CHECK(start_hash(config) == whole);
  fs::remove(directory.path() / names[1]);
  CHECK_THROWS_WITH(start_hash(config), Contains("there is no file") && Contains(names[1]));
  index["weight_map"]["model.norm.weight"] = "../elsewhere.safetensors";
  directory.write("model.safetensors.index.json", index.dump());
  CHECK_THROWS_WITH(start_hash(config), Contains("model.norm.weight is in \"../elsewhere.safetensors\""));
  directory.write("model.safetensors.index.json", R"({"weight_map": {}})");
  CHECK_THROWS_WITH(start_hash(config), Contains("there is no weight_map"));

  auto init = config;
  init.init = (directory.path() / "other.safetensors").string();
  CHECK(start_hash(init) == whole);
  fs::remove(directory.path() / "model.safetensors.index.json");
  auto nothing = config;
  nothing.init = path;
  CHECK_THROWS_WITH(start_hash(nothing), Contains("--init is") && Contains("there is no model.safetensors"));
  nothing.init = path + "/absent.safetensors";
  CHECK_THROWS_WITH(start_hash(nothing), Contains("there is no file") && Contains("absent"));
}
