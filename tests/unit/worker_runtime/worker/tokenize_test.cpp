// dtrun-worker tokenize, and training on what it writes.
#include <fstream>
#include <nlohmann/json.hpp>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "worker_runtime/data/bpe_tokenizer.hpp"
#include "worker_runtime/worker/command_line.hpp"
#include "worker_runtime/worker/commands.hpp"
#include "worker_runtime/worker/data_choice.hpp"

using namespace dtrun::runtime;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

const std::string kTokenizer = DTRUN_SOURCE_DIR "/tests/data/bpe";

Command parse(std::vector<std::string> words) {
  std::vector<const char*> argv{"dtrun-worker"};
  for (const auto& word : words) argv.push_back(word.c_str());
  return parse_command_line(static_cast<int>(argv.size()), argv.data());
}

}  // namespace

TEST_CASE("tokens written once are those that --tokenizer trains on") {
  const dtrun::tests::TempDirectory dir;
  std::string text;
  for (int i = 0; i < 40'000; ++i)
    text += "the keeper of bell " + std::to_string(i * 7919 % 10007) + (i % 9 == 0 ? ".\n\n" : " ");
  REQUIRE(text.size() > 900'000);  // several pieces
  const auto first = dir.write("a.txt", text).string(), second = dir.write("b.txt", "and \xff what else").string();
  const auto out = (dir.path() / "all.bin").string();
  const auto command = parse({"tokenize", "--tokenizer", kTokenizer, "--data", first, second, "--out", out});
  REQUIRE(command.kind == Command::Kind::tokenize);
  run_tokenize(command.tokenize);
  auto tokenizer = BpeTokenizer::from_directory(kTokenizer);
  auto tokens = tokenizer.encode(text);
  tokenizer.encode("and \xff what else", tokens);
  std::string expected;
  for (const auto token : tokens) expected += {static_cast<char>(token & 255), static_cast<char>(token >> 8)};
  CHECK(dtrun::tests::read_file(out) == expected);

  TrainConfig of_text, of_tokens;
  of_text.data = {first};
  of_text.tokenizer = kTokenizer;
  of_tokens.data = {out};
  const auto some = open_dataset(of_text), others = open_dataset(of_tokens);
  CHECK(choose_vocab_size(of_text, some) == tokenizer.vocab_size());
  std::vector<std::int32_t> row(static_cast<std::size_t>(some.seq_len()) + 1), other(row.size());
  for (const std::int64_t sample : {std::int64_t{0}, some.size() / 2, some.size() - 1}) {
    some.read(sample, 640, row);
    others.read(sample, 640, other);
    CHECK(row == other);
  }
  of_text.vocab_size = 100;
  CHECK_THROWS_WITH(choose_vocab_size(of_text, some), Contains("100 tokens, --tokenizer has 640"));
  of_tokens.tokenizer = kTokenizer;
  CHECK_THROWS_WITH(open_dataset(of_tokens), Contains("all.bin") && Contains("a tokenizer is for text"));
}

TEST_CASE("what cannot be written as 16-bit tokens is refused, and nothing is left") {
  const dtrun::tests::TempDirectory dir;
  const auto text = dir.write("a.txt", "some text").string(), bin = dir.write("a.bin", "tokens").string();
  const auto run = [&](const std::string& tokenizer, const std::string& data, const std::string& out) {
    run_tokenize({tokenizer, {data}, (dir.path() / out).string()});
  };
  CHECK_THROWS_WITH(run(kTokenizer, text, "out.txt"), Contains("ends in .bin"));
  CHECK_THROWS_WITH(run(kTokenizer, bin, "out.bin"), Contains("expected text"));
  CHECK_THROWS_WITH(run(kTokenizer, (dir.path() / "no.txt").string(), "out.bin"), Contains("no.txt"));
  CHECK_THROWS_WITH(run((dir.path() / "no").string(), text, "out.bin"), Contains("no such directory"));
  auto vocabulary = nlohmann::json::parse(std::ifstream(kTokenizer + "/vocab.json"));
  vocabulary["<|last|>"] = 65536;
  fs::create_directory(dir.path() / "large");
  std::ofstream(dir.path() / "large" / "vocab.json") << vocabulary.dump();
  fs::copy_file(kTokenizer + "/merges.txt", dir.path() / "large" / "merges.txt");
  CHECK_THROWS_WITH(run((dir.path() / "large").string(), text, "out.bin"),
                    Contains("vocabulary of 65537, expected at most 65536"));
  CHECK_FALSE(fs::exists(dir.path() / "out.bin"));
  CHECK_THROWS_AS(parse({"tokenize", "--data", text}), dtrun::UsageError);
}

TEST_CASE("the end of an epoch and epochs are options of train") {
  const auto config = parse({"train", "--last-batch", "pad", "--epochs", "3", "--warmup-steps", "5000"}).train;
  CHECK(config.end_of_epoch() == LastBatch::pad);
  CHECK(config.epochs == 3);
  CHECK_THROWS_WITH(parse({"train", "--last-batch", "fill"}), Contains("wrap or drop or pad"));
  CHECK_THROWS_WITH(parse({"train", "--epochs", "3", "--steps", "10", "--warmup-steps", "11"}), Contains("0 to 10"));
  CHECK_THROWS_WITH(parse({"train", "--epochs", "-1"}), Contains("--epochs"));
}
