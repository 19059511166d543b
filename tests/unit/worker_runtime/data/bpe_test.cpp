// Byte-level BPE: words, merges, files, and the tokens of Hugging Face's tokenizers.
#include <fmt/format.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "worker_runtime/data/bpe_tokenizer.hpp"
#include "worker_runtime/data/token_dataset.hpp"

using namespace dtrun::runtime;
using Catch::Contains;
using dtrun::tests::TempDirectory;
using Tokens = std::vector<std::int32_t>;

namespace {

// What stands for a byte in the files: the 188 printable ones are themselves, the others are U+0100 and on.
std::string character_of(int byte) {
  static const auto all = [] {
    std::vector<std::string> result;
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool itself = (b > 32 && b < 127) || (b > 160 && b != 173);
      const int c = itself ? b : next++;
      result.push_back(c < 128 ? std::string(1, static_cast<char>(c))
                               : std::string{static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))});
    }
    return result;
  }();
  return all[static_cast<std::size_t>(byte)];
}

// G is the space of the files.
const std::string kG = character_of(' ');
const std::vector<std::pair<std::string, std::string>> kMerges = {
    {"h", "e"}, {"l", "l"}, {"he", "ll"}, {kG, "w"}, {"hell", "o"}, {kG + "w", "o"}, {"a", "a"}, {"aa", "a"}};

nlohmann::json vocabulary() {
  auto result = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) result[character_of(byte)] = byte;
  int next = 256;
  for (const auto& [left, right] : kMerges) result[left + right] = next++;
  return result;
}

std::string merges() {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : kMerges) text += left + " " + right + "\n";
  return text;
}

// A byte is its own token; 256 he, 257 ll, 258 hell, 259 " w", 260 hello, 261 " wo", 262 aa, 263 aaa.
struct Files {
  explicit Files(const nlohmann::json& vocab = vocabulary(), const std::string& pairs = merges()) {
    dir.write("vocab.json", vocab.dump());
    dir.write("merges.txt", pairs);
  }
  BpeTokenizer open() const { return BpeTokenizer::from_directory(dir.path()); }
  TempDirectory dir;
};

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> result;
  Pretokenizer().split(text, [&](std::string_view word) { result.emplace_back(word); });
  return result;
}

std::string random_bytes(std::mt19937& random, std::size_t size) {
  static const std::vector<std::string> parts = {
      " ", "  ", "\n", "a", "he", "llo", "'s", "1", "\xc3\xa9", "\xc2\x85", "\xe4\xbd\xa0", "!", "\xf0\x9f\x99\x82"};
  std::string text;
  while (text.size() < size) {
    if (random() % 4 == 0) {
      text += static_cast<char>(random());
    } else {
      text += parts[random() % parts.size()];
    }
  }
  return text;
}

}  // namespace

TEST_CASE("words are those of GPT-2's expression") {
  using Words = std::vector<std::string>;
  CHECK(words("Hello world, it's 2026!") == Words{"Hello", " world", ",", " it", "'s", " 2026", "!"});
  CHECK(words("a  b \n c  ") == Words{"a", " ", " b", " \n", " c", "  "});
  CHECK(words("we'll 'Stop' x'LL") == Words{"we", "'ll", " '", "Stop", "'", " x", "'", "LL"});
  CHECK(words("\xc3\xa9t\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd\xc2\xb2") ==
        Words{"\xc3\xa9t\xc3\xa9", " \xe4\xbd\xa0\xe5\xa5\xbd", "\xc2\xb2"});
  CHECK(words("a\xc2\xa0 b\xe1\xa0\x8e"
              "c") == Words{"a", "\xc2\xa0", " b", "\xe1\xa0\x8e", "c"});  // U+180E is no space
  CHECK(words("").empty());
}

TEST_CASE("a byte that is no UTF-8 is a word of its own") {
  using Words = std::vector<std::string>;
  CHECK(words("ab\xff\xfe cd") == Words{"ab", "\xff", "\xfe", " cd"});
  CHECK(words("ab \xe2\x82") == Words{"ab", " ", "\xe2", "\x82"});  // a character that ends too soon
  CHECK(words("\xed\xa0\x80x\xc0\xaf") == Words{"\xed", "\xa0", "\x80", "x", "\xc0", "\xaf"});  // surrogate, overlong
}

TEST_CASE("merges are done in their order, of equal ones the leftmost first") {
  const Files files;
  auto tokenizer = files.open();
  CHECK(tokenizer.vocab_size() == 264);
  CHECK(tokenizer.encode("hello world") == Tokens{260, 261, 'r', 'l', 'd'});
  CHECK(tokenizer.encode("hell ll wow") == Tokens{258, ' ', 257, 261, 'w'});
  CHECK(tokenizer.encode("aaaaa") == Tokens{262, 263});
  CHECK(tokenizer.encode("aaaa") == Tokens{262, 262});
  CHECK(tokenizer.encode("").empty());
  CHECK(tokenizer.decode(Tokens{260, 261, 'r', 'l', 'd'}) == "hello world");
  CHECK_THROWS_WITH(tokenizer.decode(Tokens{264}), Contains("264 is no token of this vocabulary (0 to 263)"));
  CHECK_THROWS_AS(tokenizer.decode(Tokens{-1}), dtrun::UsageError);
}

TEST_CASE("words of any length have the tokens of the rule, done step by step") {
  const Files files;
  auto tokenizer = files.open();
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::string word;
    for (auto size = 1 + random() % 120; size > 0; --size) word += "ahelo"[random() % 5];
    std::vector<std::string> parts;
    for (const char byte : word) parts.emplace_back(1, byte);
    for (bool merged = true; merged;) {
      merged = false;
      for (const auto& [left, right] : kMerges) {
        for (std::size_t i = 0; i + 1 < parts.size() && !merged; ++i) {
          if (parts[i] != left || parts[i + 1] != right) continue;
          parts[i] += parts[i + 1];
          parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          merged = true;
        }
        if (merged) break;
      }
    }
    Tokens expected;
    for (const auto& part : parts) expected.push_back(vocabulary().at(part).get<std::int32_t>());
    CAPTURE(word);
    CHECK(tokenizer.encode(word) == expected);
  }
}

TEST_CASE("decoding what was encoded gives the same bytes, whatever they are") {
  const Files files;
  auto tokenizer = files.open();
  std::mt19937 random(2);
  for (int round = 0; round < 400; ++round) {
    std::string text;
    if (round % 2 == 0) {
      text = random_bytes(random, random() % 200);
    } else {
      for (auto size = random() % 200; size > 0; --size) text += static_cast<char>(random());
    }
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  }
}

TEST_CASE("a text that is cut at safe places has the tokens of the whole") {
  const Files files;
  auto tokenizer = files.open();
  std::mt19937 random(3);
  int cuts = 0;
  for (int round = 0; round < 200; ++round) {
    const auto text = random_bytes(random, 60);
    const auto whole = tokenizer.encode(text);
    for (std::size_t end = 1; end <= text.size(); ++end) {
      const auto cut = safe_cut(std::string_view(text).substr(0, end));
      REQUIRE(cut < end);
      if (cut == 0) continue;
      ++cuts;
      auto parts = tokenizer.encode(text.substr(0, cut));
      tokenizer.encode(text.substr(cut), parts);
      REQUIRE(parts == whole);
    }
  }
  CHECK(cuts > 1000);
  std::string large;
  while (large.size() < 900'000) large += random_bytes(random, 5000);
  Tokens pieces;
  tokenizer.encode_pieces(large, [&](std::span<const std::int32_t> piece) {
    CHECK(piece.size() < 300'000);
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  });
  CHECK(pieces == tokenizer.encode(large));
}

TEST_CASE("a text without a safe place is cut between characters") {
  std::string text;
  while (text.size() < 9'000'000) text += "\xe4\xbd\xa0";
  std::string again;
  for_pieces(text, [&](std::string_view piece) {
    CHECK((piece.front() == '\xe4' && piece.back() == '\xa0' && piece.size() <= std::size_t{4} << 20));
    again += piece;
  });
  CHECK(again == text);
}

TEST_CASE("one word of a megabyte is encoded too") {
  const Files files;
  auto tokenizer = files.open();
  const auto tokens = tokenizer.encode(std::string(1'000'001, 'a'));
  CHECK(tokens.size() == 500'000);
  CHECK(tokens.back() == 263);
}

TEST_CASE("tokens are those of Hugging Face's tokenizers") {
  const std::filesystem::path directory = DTRUN_SOURCE_DIR "/tests/data/bpe";
  auto tokenizer = BpeTokenizer::from_directory(directory);
  std::ifstream file(directory / "tokens.txt");
  std::string line;
  int lines = 0;
  for (; std::getline(file, line); ++lines) {
    std::istringstream fields(line);
    std::string hex;
    fields >> hex;
    std::string text;
    for (std::size_t i = 0; i < hex.size(); i += 2) text += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    const Tokens expected{std::istream_iterator<std::int32_t>(fields), {}};
    CAPTURE(lines, text);
    CHECK(tokenizer.encode(text) == expected);
    CHECK(tokenizer.decode(expected) == text);
  }
  CHECK(lines >= 1000);
}

TEST_CASE("files that are no byte-level BPE are refused by name, line and token") {
  const TempDirectory dir;
  const auto open = [](const std::filesystem::path& path) { BpeTokenizer::from_directory(path); };
  CHECK_THROWS_WITH(open(dir.path() / "nowhere"),
                    Contains("no such directory") && Contains("vocab.json and merges.txt"));
  CHECK_THROWS_WITH(open(dir.path()), Contains("has no vocab.json"));
  const auto json = dir.write("tokenizer.json", "{}");
  CHECK_THROWS_WITH(open(json), Contains("tokenizer.json\": is a file, expected a directory"));
  CHECK_THROWS_WITH(open(dir.path()), Contains("has a tokenizer.json alone"));
  const auto refused = [](const nlohmann::json& vocab, const std::string& pairs, const std::string& text) {
    CAPTURE(text);
    CHECK_THROWS_WITH(Files(vocab, pairs).open(), Contains(text));
  };
  refused(nlohmann::json::array(), merges(), "vocab.json\": expected a JSON object");
  auto vocab = vocabulary();
  vocab["he"] = "x";
  refused(vocab, merges(), "token \"he\" has the number \"x\"");
  vocab["he"] = -1;
  refused(vocab, merges(), "token \"he\" has the number -1");
  vocab["he"] = 257;
  refused(vocab, merges(), "two tokens have the number 257");
  vocab = vocabulary();
  vocab.erase("A");
  refused(vocab, merges(), "byte 65 (\"A\") has no token");
  refused(vocabulary(), "h e\nhe\n", "merges.txt\", line 2: \"he\": expected two tokens");
  refused(vocabulary(), "h e l\n", "expected two tokens");
  refused(vocabulary(), "h o\n", "line 1: \"h o\": expected tokens of vocab.json");
  refused(vocabulary(), "h e\n\nh e\n", "line 3: \"h e\": is there twice");
}

TEST_CASE("tokens that were added to the vocabulary stand for themselves") {
  auto vocab = vocabulary();
  vocab["<|end of text|>"] = 300;  // a space is in no other token
  const Files files(vocab);
  auto tokenizer = files.open();
  CHECK(tokenizer.vocab_size() == 301);
  CHECK(tokenizer.decode(Tokens{'a', 300}) == "a<|end of text|>");
  CHECK_THROWS_AS(tokenizer.decode(Tokens{299}), dtrun::UsageError);
}

TEST_CASE("a data set of text has the tokens of the tokenizer") {
  const Files files;
  auto tokenizer = files.open();
  const TempDirectory dir;
  const std::vector<std::filesystem::path> paths{dir.write("a.txt", "hello world"), dir.write("b.txt", "aaaa hello")};
  const auto data = TokenDataset::from_files(paths, 2, &tokenizer);
  CHECK(data.vocab_size() == 264);
  CHECK(data.tokens() == 9);
  CHECK(data.size() == 3);
  std::vector<std::int32_t> row(3);
  data.read(1, 264, row);
  CHECK(row == Tokens{'r', 'l', 'd'});
  data.read(2, 264, row);
  CHECK(row == Tokens{262, 262, ' '});
  CHECK_THROWS_WITH(data.read(0, 260, row), Contains("a.txt") && Contains("token 260 at position 0"));
  const std::vector<std::filesystem::path> ready{dir.write("c.bin", "abcdefgh")};
  CHECK_THROWS_WITH(TokenDataset::from_files(ready, 2, &tokenizer), Contains("c.bin") && Contains("tokens already"));
  auto vocab = vocabulary();
  vocab["<|large|>"] = 70000;
  const Files large(vocab);
  auto wide = large.open();
  const auto of_large = TokenDataset::from_text("hello world", 2, "text", &wide);
  CHECK(of_large.vocab_size() == 70001);
  of_large.read(0, 70001, row);
  CHECK(row == Tokens{260, 261, 'r'});
}
