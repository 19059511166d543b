#include "worker_runtime/worker/command_line.hpp"
#include "worker_runtime/worker/parallel_choice.hpp"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"

using namespace dtrun::runtime;
using Catch::Contains;

namespace {

Command parse(std::vector<const char*> words) {
  words.insert(words.begin(), "dtrun-worker");
  return parse_command_line(static_cast<int>(words.size()), words.data());
}

// A file that is gone at the end of the test.
class ConfigFile {
 public:
  explicit ConfigFile(std::string_view content) {
    auto name = (std::filesystem::temp_directory_path() / "dtrun-config-XXXXXX").string();
    const int fd = ::mkstemp(name.data());
    REQUIRE(fd >= 0);
    ::close(fd);
    path_ = name;
    std::ofstream(path_) << content;
  }
  ~ConfigFile() { std::filesystem::remove(path_); }
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("no arguments are the default run, bounded in time") {
  const auto command = parse({});
  CHECK(command.kind == Command::Kind::train);
  CHECK(command.default_run);
  CHECK(command.train.max_seconds > 0);
  CHECK_FALSE(parse({"train"}).default_run);
  CHECK(parse({"train"}).train.max_seconds == 0);
}

TEST_CASE("every flag reaches its field") {
  const auto c = parse({"train",
                        "--layers",
                        "2",
                        "--hidden=64",
                        "--heads",
                        "8",
                        "--vocab_size",
                        "300",
                        "--seq-len",
                        "16",
                        "--data",
                        "a",
                        "b",
                        "--batch-size",
                        "3",
                        "--micro-batches",
                        "2",
                        "--steps",
                        "7",
                        "--lr",
                        "2.5e-4",
                        "--bucket-mb",
                        "0.5",
                        "--comm-thread",
                        "--seed",
                        "9",
                        "--standalone"});
  CHECK(c.standalone);
  CHECK(c.train.layers == 2);
  CHECK(c.train.hidden == 64);
  CHECK(c.train.heads == 8);
  CHECK(c.train.vocab_size == 300);
  CHECK(c.train.data == std::vector<std::string>{"a", "b"});
  CHECK(c.train.lr == 2.5e-4);
  CHECK(c.train.bucket_bytes() == 512 * 1024);
  CHECK(c.train.comm_thread);
  CHECK(c.train.seed == 9);
}

TEST_CASE("a flag beats the file, the file beats the default") {
  const ConfigFile file(R"({"steps": 11, "seq_len": 32, "lr": 1, "data": "x.txt", "comm-thread": true})");
  const auto c = parse({"train", "--steps", "5", "--config", file.path()}).train;
  CHECK(c.steps == 5);
  CHECK(c.seq_len == 32);
  CHECK(c.lr == 1.0);
  CHECK(c.data == std::vector<std::string>{"x.txt"});
  CHECK(c.comm_thread);
  CHECK(c.layers == TrainConfig{}.layers);
}

TEST_CASE("unknown keys and flags are refused with the nearest known one") {
  const ConfigFile file(R"({"batchsize": 4})");
  CHECK_THROWS_WITH(parse({"train", "--config", file.path()}), Contains(file.path()) &&
                                                                   Contains("unknown key \"batchsize\"") &&
                                                                   Contains("did you mean \"batch-size\""));
  CHECK_THROWS_WITH(parse({"train", "--batchsize", "4"}),
                    Contains("--batchsize") && Contains("did you mean \"--batch-size\""));
  CHECK_THROWS_WITH(parse({"trian"}), Contains("unexpected \"trian\"") && Contains("did you mean \"train\""));
  CHECK_THROWS_WITH(parse({"train", "--zzzzzzzz", "1"}), Contains("--zzzzzzzz") && !Contains("did you mean"));
  CHECK_THROWS_AS(parse({"train", "--zzzzzzzz", "1"}), dtrun::UsageError);
}

TEST_CASE("a plan takes the options of train, a world and a rank") {
  const auto command = parse({"plan", "--world-size", "512", "--rank=3", "--parallel", "fsdp=512", "--layers", "2"});
  CHECK(command.kind == Command::Kind::plan);
  CHECK(command.plan.world_size == 512);
  CHECK(command.plan.rank == 3);
  CHECK(command.train.parallel == "fsdp=512");
  CHECK_THROWS_WITH(parse({"plan", "--world-size", "0"}), Contains("--world-size"));
}

TEST_CASE("where a run goes on and what it leaves can be said, within limits") {
  const auto run = parse({"train", "--checkpoint-dir", "x", "--checkpoint-every=5", "--keep=0", "--resume", "y"}).train;
  CHECK(run.checkpoint_dir == "x");
  CHECK(run.checkpoint_every == 5);
  CHECK(run.keep == 0);
  CHECK(run.resume == "y");
  CHECK(parse({"train"}).train.resume == "auto");
  CHECK_THROWS_WITH(parse({"train", "--checkpoint-every=-1"}), Contains("--checkpoint-every"));
  CHECK_THROWS_WITH(parse({"train", "--keep=-1"}), Contains("--keep"));
  CHECK_THROWS_WITH(parse({"train", "--snapshot-every=-2"}), Contains("--snapshot-every"));
  CHECK_THROWS_WITH(parse({"train", "--resume="}), Contains("--resume"));
  const ConfigFile file(R"({"checkpoint_every": 2})");
  CHECK(parse({"train", "--config", file.path()}).train.checkpoint_every == 2);
}

TEST_CASE("convert takes what it reads and what it makes") {
  const auto command = parse({"convert", "--from", "a", "--to=b", "--max-shard-size", "2GB", "--dtype", "bf16"});
  CHECK(command.kind == Command::Kind::convert);
  CHECK(command.convert.from == "a");
  CHECK(command.convert.to == "b");
  CHECK(command.convert.max_shard == 2'000'000'000);
  CHECK(command.convert.dtype == "bf16");
  CHECK_FALSE(command.convert.overwrite);
  CHECK(parse({"convert", "--from", "a", "--to", "b", "--overwrite", "--to-format", "hf"}).convert.overwrite);
  CHECK_THROWS_WITH(parse({"convert", "--from", "a"}), Contains("--to"));
  CHECK_THROWS_WITH(parse({"convert", "--to", "a"}), Contains("--from"));
  CHECK_THROWS_WITH(parse({"convert", "--from", "a", "--to", "b", "--dtype", "f16"}), Contains("--dtype"));
  CHECK_THROWS_WITH(parse({"convert", "--from", "a", "--to", "b", "--to-format", "gguf"}), Contains("--to-format"));
}

TEST_CASE("sizes of weight files are counted as Hugging Face counts") {
  const std::vector<std::pair<const char*, std::int64_t>> rows = {
      {"5GB", 5'000'000'000}, {"500MB", 500'000'000}, {"3KB", 3'000},  {"1TB", 1'000'000'000'000},
      {"2GiB", 2LL << 30},    {"64K", 64 << 10},      {"12345", 12345}};
  for (const auto& [text, bytes] : rows) {
    CAPTURE(text);
    CHECK(parse_bytes("--max-shard-size", text) == bytes);
  }
  for (const char* text : {"", "B", "GB", "-5GB", "0GB", "5.5GB", "5XB", "9999999999GB", "iB", "5 GB"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(parse_bytes("--max-shard-size", text), Contains("--max-shard-size is"));
  }
}

TEST_CASE("a device and a backend that move other memory are refused together") {
  CHECK(parse({"train", "--device", "cuda", "--backend", "nccl"}).train.device == "cuda");
  CHECK(parse({"bench", "--device=fake-cuda"}).bench.device.device == "fake-cuda");
  CHECK(parse({"hello", "--device", "cpu"}).hello.device == "cpu");
  CHECK_THROWS_WITH(parse({"train", "--device", "gpu"}), Contains("--device is \"gpu\"") && Contains("fake-cuda"));
  CHECK_THROWS_WITH(parse({"bench", "--device", "gpu"}), Contains("--device"));
  CHECK_THROWS_WITH(parse({"train", "--device", "cpu", "--backend", "nccl"}),
                    Contains("--backend nccl") && Contains("--device is \"cpu\""));
  for (const auto* device : {"cuda", "fake-cuda"}) {
    for (const auto* backend : {"shm", "gloo"}) {
      CHECK_THROWS_WITH(parse({"train", "--device", device, "--backend", backend}),
                        Contains(backend) && Contains(device) && Contains("expected auto or nccl"));
    }
  }
}

TEST_CASE("each local rank has the device of its number") {
  const auto index = [](int local_rank, int ranks, int devices, std::optional<std::string> list = {}) {
    WorkerEnvironment place;
    place.local_rank = local_rank;
    place.local_world_size = ranks;
    return device_index(place, devices, list);
  };
  CHECK(index(0, 1, 8) == 0);
  CHECK(index(3, 4, 4) == 3);
  CHECK(index(1, 2, 2, "4,6") == 1);
  // The launcher gave each rank one.
  CHECK(index(3, 4, 1, "3") == 0);
  CHECK(index(1, 2, 1, "GPU-8f2b0c5e") == 0);
  CHECK_THROWS_WITH(index(1, 2, 1), Contains("2 ranks on this host") && Contains("local rank 1") &&
                                        Contains("1 GPU to be seen") && Contains("--device cpu"));
  CHECK_THROWS_WITH(index(0, 4, 2, "0,1"), Contains("4 ranks") && Contains("2 GPUs"));
}

TEST_CASE("stages of a pipeline, from flags and files, and wrong ones") {
  const auto config =
      parse({"train", "--schedule=interleaved", "--split", "h.1,h.2,head", "--recompute", "blocks"}).train;
  auto two = config;
  two.parallel = "pp=2";
  two.micro_batches = 4;
  const auto parallel = parallel_config(two, 2);
  CHECK(parallel.schedule == Schedule::interleaved);
  CHECK(parallel.virtual_stages == 2);
  CHECK(parallel.split == std::vector<std::string>{"h.1", "h.2", "head"});
  CHECK(parallel.recompute_blocks);
  const ConfigFile file(R"({"schedule": "gpipe", "virtual_stages": 3})");
  CHECK(parse({"train", "--config", file.path()}).train.virtual_stages == 3);
  CHECK_THROWS_WITH(parse({"train", "--schedule", "1f1B"}),
                    Contains("--schedule is \"1f1B\"") && Contains("gpipe or 1f1b"));
  CHECK_THROWS_WITH(parse({"train", "--recompute", "all"}),
                    Contains("--recompute is \"all\", expected none or blocks"));
}

TEST_CASE("bad values name the flag, the value and what was expected") {
  CHECK_THROWS_WITH(parse({"train", "--steps", "many"}),
                    Contains("--steps") && Contains("\"many\"") && Contains("whole number"));
  CHECK_THROWS_WITH(parse({"train", "--steps", "0"}), Contains("--steps is \"0\""));
  for (const auto* option : {"--save", "--checkpoint-dir", "--data"})  // a variable of a script that is not set
    CHECK_THROWS_WITH(parse({"train", option, ""}), Contains(option) && Contains("is \"\", expected a path"));
  CHECK_THROWS_WITH(parse({"train", "--lr", "1e-3x"}), Contains("[train] --lr is \"1e-3x\""));
  CHECK_THROWS_WITH(parse({"train", "--lr", "nan"}), Contains("[train] --lr is \"nan\", expected a number"));
  CHECK_THROWS_WITH(parse({"train", "--heads", "3"}),
                    Contains("--heads is \"3\"") && Contains("divisor of --hidden 128"));
  CHECK_THROWS_WITH(parse({"train", "--dtype", "f23"}), Contains("did you mean \"f32\""));
  CHECK_THROWS_WITH(parse({"train", "--config", "/nowhere.json"}),
                    Contains("/nowhere.json") && Contains("no such file"));
  const ConfigFile broken("{\"steps\": ");
  CHECK_THROWS_WITH(parse({"train", "--config", broken.path()}), Contains("line 1, column 11: not JSON: ") &&
                                                                     Contains("unexpected end of input") &&
                                                                     !Contains("json.exception"));
  const ConfigFile second("{\n  \"steps\": 3,\n  oops\n}");
  CHECK_THROWS_WITH(parse({"train", "--config", second.path()}), Contains("line 3, column 3: not JSON"));
  CHECK_THROWS_WITH(parse({"train", "--config", "/tmp"}), Contains("--config /tmp: is a directory"));
  CHECK_THROWS_AS(parse({"train", "--config", "/tmp"}), dtrun::UsageError);
  const ConfigFile list("[1]");
  CHECK_THROWS_WITH(parse({"train", "--config", list.path()}), Contains("expected a JSON object"));
  const ConfigFile wrong(R"({"steps": "7"})");
  CHECK_THROWS_WITH(parse({"train", "--config", wrong.path()}), Contains(": steps is \"7\", expected a whole number"));
  const ConfigFile real(R"({"steps": 7.5})");
  CHECK_THROWS_WITH(parse({"train", "--config", real.path()}), Contains("7.5"));
}

TEST_CASE("a report's configuration is a --config file again") {
  auto config = parse({"train", "--steps", "5", "--data", "a", "b", "--bucket-mb", "0"}).train;
  TrainConfig again;
  apply_json(again, to_json(config), "report");
  CHECK(to_json(again) == to_json(config));
}

TEST_CASE("an option takes one word: those behind it are not its own") {
  CHECK_THROWS_WITH(parse({"train", "--lr", "1e-3", "5"}), Contains("unexpected \"5\""));
  CHECK_THROWS_WITH(parse({"train", "--parallel", "fsdp=2", "tp=2"}), Contains("unexpected \"tp=2\""));
  CHECK_THROWS_WITH(parse({"plan", "--layers", "2", "3", "--world-size", "4"}), Contains("unexpected \"3\""));
  CHECK(parse({"train", "--lr", "1e-3", "--lr", "5e-3"}).train.lr == 5e-3);
  CHECK(parse({"train", "--data", "a", "b", "--steps", "3"}).train.data == std::vector<std::string>{"a", "b"});
}

TEST_CASE("the layout must use every rank") {
  CHECK(parse_parallel("", 4).dp == 4);
  CHECK(parse_parallel("dp=4", 4).dp == 4);
  CHECK(parse_parallel("fsdp=4", 4).fsdp == 4);
  CHECK(parse_parallel("dp=1,fsdp=4", 4).dp == 1);
  CHECK(parse_parallel("fsdp=2,dp=2", 4) == MeshAxes{.dp = 2, .fsdp = 2});
  CHECK(parse_parallel("pp=2,tp=2", 4) == MeshAxes{.pp = 2, .tp = 2});
  CHECK(parse_parallel("dp=2,tp=2,sp", 4) == MeshAxes{.dp = 2, .tp = 2});
  CHECK_THROWS_WITH(parse_parallel("tp=4,sp,sp", 4), Contains("expected axis=N"));
  CHECK_THROWS_WITH(parse_parallel("dp=4,sp", 4), Contains("sp (sequence parallelism) cuts the sequence over the ranks "
                                                           "of tp, expected tp=2 or more"));
  CHECK_THROWS_WITH(parse_parallel("fsdp=2,fsdp=2", 4), Contains("fsdp is given twice"));
  CHECK(parse_parallel("dp=4,tp=1", 4).dp == 4);
  CHECK_THROWS_WITH(parse_parallel("dp=2", 4), Contains("needs 2 ranks, this job has 4"));
  CHECK(MeshAxes{.pp = 2, .dp = 2, .fsdp = 3, .tp = 2}.data_rank(23) == 5);
  CHECK(MeshAxes{.pp = 2, .dp = 2, .fsdp = 3, .tp = 2}.data_rank(2) == 1);
  CHECK_THROWS_WITH(parse_parallel("dq=4", 4), Contains("unknown axis \"dq\""));
  CHECK_THROWS_WITH(parse_parallel("dp", 4), Contains("expected axis=N"));
  CHECK_THROWS_WITH(parse_parallel("dp=0", 4), Contains("expected axis=N"));
  CHECK_THROWS_WITH(parse_parallel("dp=2,dp=2", 4), Contains("twice"));
}

TEST_CASE("sequence parallelism takes sequences that its ranks can share") {
  auto config = parse({"train", "--parallel", "tp=4,sp", "--seq-len", "128"}).train;
  CHECK(parallel_config(config, 4).sequence_parallel);
  config.seq_len = 126;
  CHECK_THROWS_WITH(parallel_config(config, 4), Contains("--seq-len is 126, expected a multiple of tp=4"));
  config.parallel = "tp=4";
  CHECK_FALSE(parallel_config(config, 4).sequence_parallel);
}

TEST_CASE("sizes take suffixes") {
  CHECK(parse_size("x", "64K") == 65536);
  CHECK(parse_size("x", "1g") == std::int64_t{1} << 30);
  CHECK(parse_size("x", "12") == 12);
  for (const auto* text : {"", "K", "-1", "0", "1T", "9999999999999G"})
    CHECK_THROWS_AS(parse_size("x", text), dtrun::UsageError);
}

TEST_CASE("help and version are text") {
  CHECK_THAT(parse({"train", "--help"}).text, Contains("--batch-size"));
  CHECK(parse({"--help"}).kind == Command::Kind::print);
  CHECK_THAT(parse({"--version"}).text, Contains("dtrun-worker"));
  CHECK(parse({"hello"}).kind == Command::Kind::hello);
  CHECK(parse({"bench", "--op", "all", "--max-bytes", "1M"}).bench.max_bytes == 1 << 20);
}

TEST_CASE("options of an axis that is not there are refused") {
  const auto refused = [](std::vector<const char*> all, const char* parallel, const char* text) {
    all.insert(all.begin(), "train");
    if (*parallel != 0) all.insert(all.end(), {"--parallel", parallel});
    CHECK_THROWS_WITH(parallel_config(parse(all).train, 4), Contains(text));
  };
  refused({"--schedule", "gpipe"}, "", "--schedule is gpipe, which is for --parallel pp=N");
  refused({"--virtual-stages", "2"}, "fsdp=4", "--virtual-stages is 2, which is for --parallel pp=N, not fsdp=4");
  refused({"--split", "h.1"}, "dp=4", "--split is h.1, which is for --parallel pp=N, not dp=4");
  refused({"--reshard-after-forward", "false"}, "dp=4", "which is for --parallel fsdp=N, not dp=4");
  CHECK_NOTHROW(parallel_config(parse({"train", "--schedule", "gpipe", "--parallel", "pp=1,dp=4"}).train, 4));
}

TEST_CASE("limits of the model are those of the command line") {
  CHECK_THROWS_WITH(parse({"train", "--layers", "4097"}), Contains("--layers is \"4097\", expected 1 to 4096"));
  CHECK_THROWS_WITH(parse({"train", "--vocab-size", "16777217"}), Contains("expected 0 to 16777216"));
  CHECK(parse({"train", "--layers", "4096"}).train.layers == 4096);
}

TEST_CASE("the model's family and its heads") {
  CHECK(parse({"train", "--model", "llama", "--kv-heads", "2"}).train.kv_heads == 2);
  CHECK(parse({"train", "--heads", "2", "--kv-heads", "2"}).train.kv_heads == 2);
  const auto choice = parse({"train", "--model=llama", "--kv_heads=1", "--layers=3"}).train.model_choice(300);
  const auto& llama = std::get<LlamaConfig>(choice);
  CHECK(llama.num_hidden_layers == 3);
  CHECK(llama.kv_heads() == 1);
  CHECK(llama.vocab_size == 300);
  CHECK(std::get<GPT2Config>(parse({"train", "--seq-len=7"}).train.model_choice(9)).n_positions == 7);
  CHECK_THROWS_WITH(parse({"train", "--model", "lama"}),
                    Contains("--model is \"lama\", expected gpt2, llama or a directory with a config.json") &&
                        Contains("did you mean \"llama\""));
  CHECK_THROWS_WITH(parse({"train", "--kv-heads", "2"}), Contains("--kv-heads is \"2\"") && Contains("llama only"));
  CHECK_THROWS_WITH(parse({"train", "--model", "llama", "--kv-heads", "3"}),
                    Contains("--kv-heads is \"3\", expected a divisor of --heads 4"));
  CHECK_THROWS_WITH(parse({"train", "--model", "llama", "--kv-heads", "8"}), Contains("expected 0 to 4"));
  CHECK_THROWS_WITH(parse({"train", "--model", "llama", "--hidden", "12", "--heads", "4"}), Contains("even width"));
  CHECK_THROWS_AS(parse({"train", "--model", "llama", "--heads", "3"}), dtrun::UsageError);
}

TEST_CASE("options of train before or without it are sent to it") {
  CHECK_THROWS_WITH(parse({"--steps", "3"}), Contains("--steps is an option of train and belongs after it"));
  CHECK_THROWS_WITH(parse({"--seq_len=3", "train"}), Contains("--seq-len") && Contains("belongs after it"));
}

TEST_CASE("help shows types and defaults") {
  const auto text = parse({"train", "--help"}).text;
  CHECK_THAT(text, Contains("--steps INT=100") && Contains("--lr NUMBER=0.001") && Contains("--save TEXT") &&
                       Contains("--dtype TEXT=f32"));
  CHECK_THAT(parse({"bench", "--help"}).text, Contains("TEXT=all_reduce") && Contains("SIZE=64M"));
}
