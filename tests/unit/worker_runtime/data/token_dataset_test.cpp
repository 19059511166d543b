#include "worker_runtime/data/token_dataset.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "worker_runtime/data/embedded_text.hpp"

using namespace dtrun::runtime;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

using dtrun::tests::TempDirectory;

TokenDataset open(std::vector<fs::path> paths, std::int64_t seq_len = 4) {
  return TokenDataset::from_files(paths, seq_len);
}

std::vector<std::int32_t> sample(const TokenDataset& data, std::int64_t index, std::int64_t vocab = 65536) {
  std::vector<std::int32_t> row(static_cast<std::size_t>(data.seq_len() + 1));
  data.read(index, vocab, row);
  return row;
}

}  // namespace

TEST_CASE("text files are cut into samples that share one token, each file by itself") {
  const TempDirectory dir;
  const auto data = open({dir.write("a.txt", "abcdefghij"), dir.write("b.txt", "ABCDE")});
  CHECK(data.size() == 3);
  CHECK(data.tokens() == 15);
  CHECK(sample(data, 0) == std::vector<std::int32_t>{'a', 'b', 'c', 'd', 'e'});
  CHECK(sample(data, 1) == std::vector<std::int32_t>{'e', 'f', 'g', 'h', 'i'});
  CHECK(sample(data, 2) == std::vector<std::int32_t>{'A', 'B', 'C', 'D', 'E'});
}

TEST_CASE("the fingerprint tells files apart, also ones of the same size, however they are cut") {
  const TempDirectory dir;
  std::string text(1 << 20, 'a');
  const auto first = open({dir.write("a.txt", text)}).fingerprint();
  CHECK(open({dir.write("copy.txt", text)}, 100).fingerprint() == first);
  for (const std::size_t at : {std::size_t{0}, text.size() - 1, text.size() - 4096, std::size_t{4095}}) {
    text[at] = 'b';
    CHECK(open({dir.write("b.txt", text)}).fingerprint() != first);
    text[at] = 'a';
  }
  CHECK(open({dir.write("b.txt", text + "a")}).fingerprint() != first);
  CHECK(open({dir.write("x.txt", "abcdefghij"), dir.write("y.txt", "ABCDE")}).fingerprint() !=
        open({dir.write("x.txt", "abcde"), dir.write("y.txt", "fghijABCDE")}).fingerprint());
  const auto tokens = std::string(12, '\x01');
  CHECK(open({dir.write("a.bin", tokens)}).fingerprint() != open({dir.write("a.bin", tokens + tokens)}).fingerprint());
  CHECK(open({dir.write("one.txt", "abcde")}).fingerprint() == open({dir.write("two.txt", "abcde")}).fingerprint());
}

TEST_CASE("bytes above 127 are tokens 128 to 255") {
  const TempDirectory dir;
  const auto data = open({dir.write("a.txt", "\xff\x80\x7f\xc3\xa4")});
  CHECK(sample(data, 0) == std::vector<std::int32_t>{255, 128, 127, 195, 164});
}

TEST_CASE("token files are 16 bits, little-endian") {
  const TempDirectory dir;
  const auto data =
      open({dir.write("a.bin", std::string_view("\x01\x00\x00\x01\xff\xff\x02\x00\x03\x00\x04\x00", 12))});
  CHECK(data.format() == TokenFormat::u16);
  CHECK(data.size() == 1);
  CHECK(sample(data, 0) == std::vector<std::int32_t>{1, 256, 65535, 2, 3});
  CHECK_THROWS_WITH(sample(data, 0, 1000),
                    Contains("a.bin") && Contains("token 65535 at position 2") && Contains("1000"));
}

TEST_CASE("llm.c's header is recognised, checked and left out") {
  const TempDirectory dir;
  const auto file = [&](std::uint32_t magic, std::uint32_t version, std::uint32_t count, std::string_view tokens) {
    std::string bytes(1024, '\0');
    std::size_t at = 0;
    for (const auto value : {magic, version, count}) {
      for (int byte = 0; byte < 4; ++byte) bytes[at++] = static_cast<char>(value >> (8 * byte));
    }
    return dir.write("a.bin", bytes.append(tokens));
  };
  const std::string_view five("\x01\x00\x00\x01\xff\xff\x02\x00\x03\x00", 10);
  const auto data = open({file(20240520, 1, 5, five)});
  CHECK(data.tokens() == 5);
  CHECK(sample(data, 0) == std::vector<std::int32_t>{1, 256, 65535, 2, 3});
  CHECK_THROWS_WITH(open({file(20240520, 2, 5, five)}), Contains("a.bin") && Contains("version 2, expected 1"));
  CHECK_THROWS_WITH(open({file(20240520, 1, 6, five)}), Contains("says 6 tokens, so 1036 bytes; the file has 1034"));
  CHECK_THROWS_WITH(open({file(20240520, 1, 4, five)}), Contains("says 4 tokens"));
  CHECK_THROWS_WITH(open({file(20240801, 7, 5, five)}), Contains("32-bit tokens"));
  CHECK_THROWS_WITH(open({dir.write("b.bin", "\x88\xd8\x34\x01zz")}), Contains("has 6 bytes: the header has 1024"));
  CHECK(open({file(20240521, 1, 5, five)}).tokens() == 512 + 5);  // raw
}

TEST_CASE("bad data files are refused by name") {
  const TempDirectory dir;
  const auto good = dir.write("good.txt", "long enough");
  CHECK_THROWS_WITH(open({}), Contains("no data files"));
  CHECK_THROWS_WITH(open({good, dir.path() / "nowhere.txt"}), Contains("nowhere.txt") && Contains("No such file"));
  CHECK_THROWS_WITH(open({dir.write("empty.txt", "")}), Contains("empty.txt") && Contains("is empty"));
  CHECK_THROWS_WITH(open({dir.write("short.txt", "abcd")}),
                    Contains("short.txt") && Contains("4 tokens") && Contains("at least 5"));
  CHECK_THROWS_WITH(open({dir.path()}), Contains("is a directory"));
  CHECK_THROWS_WITH(open({dir.write("odd.bin", "abcdefghijk")}), Contains("odd.bin") && Contains("even number"));
  CHECK_THROWS_WITH(open({good, dir.write("b.bin", "abcdefghijkl")}), Contains("cannot be mixed"));
  CHECK_THROWS_AS(open({good}, 0), dtrun::UsageError);
  REQUIRE(::mkfifo((dir.path() / "fifo.txt").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(open({dir.path() / "fifo.txt"}), Contains("not a regular file"));
}

TEST_CASE("a data set keeps its files mapped when it is moved and copied") {
  const TempDirectory dir;
  auto first = open({dir.write("a.txt", "abcdefghij")});
  const TokenDataset copy = first;
  const TokenDataset moved = std::move(first);
  fs::remove(dir.path() / "a.txt");
  CHECK(sample(copy, 1) == sample(moved, 1));
}

TEST_CASE("the embedded text is plain ASCII and long enough to train on") {
  const auto text = embedded_text();
  CHECK(text.size() > 12'000);
  CHECK(std::ranges::all_of(text, [](unsigned char c) { return c == '\n' || (c >= ' ' && c < 127); }));
  CHECK(TokenDataset::from_text(text, 128, "embedded text").size() > 90);
}
