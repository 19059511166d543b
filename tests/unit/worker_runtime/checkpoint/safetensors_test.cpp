#include "worker_runtime/checkpoint/safetensors.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sys/stat.h>
#include <cmath>
#include <cstring>
#include <filesystem>

#include <fstream>
#include <random>
#include <string>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "worker_runtime/checkpoint/hash.hpp"

using namespace dtrun::runtime;
namespace fs = std::filesystem;

namespace {

std::string with_length(const std::string& header, const std::string& data) {
  std::uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  return bytes + header + data;
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// The message of the Error that `action` throws; empty when it throws none.
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
    return {};
  } catch (const dtrun::Error& error) {
    return error.what();
  }
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Fixture {
  MemoryAccount account;
  Arena arena{MemoryTag::param, account};
  dtrun::tests::TempDirectory dir;

  Tensor floats(const Shape& shape, float start) {
    Tensor t = Tensor::empty(shape, DType::f32, arena);
    for (float& x : t.span<float>()) x = start++;
    return t;
  }
};

}  // namespace

TEST_CASE_METHOD(Fixture, "what is written is read back, with metadata, empty and scalar tensors") {
  Tensor ids = Tensor::empty({3}, DType::i64, arena);
  ids.data<std::int64_t>()[0] = -1;
  ids.data<std::int64_t>()[1] = INT64_MAX;
  ids.data<std::int64_t>()[2] = 7;
  const std::vector<NamedTensor> tensors = {
      {"b", floats({2, 3}, 1)}, {"a \"quoted\" \xc3\xa9", floats({}, 5)}, {"none", floats({0, 4}, 0)}, {"ids", ids}};
  write_safetensors(dir.file("x.safetensors"), tensors, {{"format", "pt"}});
  const SafetensorsReader reader(dir.file("x.safetensors"));
  CHECK(reader.entries().size() == 4);
  CHECK(reader.metadata().at("format") == "pt");
  CHECK(reader.entry("b").dtype == "F32");
  for (const NamedTensor& item : tensors) {
    const Tensor back = Tensor::zeros(item.tensor.shape(), item.tensor.dtype(), arena);
    reader.read(item.name, back);
    CHECK(std::memcmp(back.raw(), item.tensor.raw(), back.bytes()) == 0);
  }
  const Tensor part = Tensor::zeros({2}, DType::f32, arena);
  reader.read_elements("b", 3, part);
  CHECK(part.data<float>()[0] == 4.0F);
  CHECK(part.data<float>()[1] == 5.0F);
  CHECK_THROWS_AS(reader.read_elements("b", 5, part), dtrun::Error);
  CHECK_THROWS_AS(reader.read_elements("b", UINT64_MAX, part), dtrun::Error);
  CHECK_THROWS_AS(reader.read("c", part), dtrun::Error);
  CHECK_THROWS_AS(reader.read("b", floats({3, 2}, 0)), dtrun::Error);
  CHECK_THROWS_AS(reader.read("ids", floats({3}, 0)), dtrun::Error);
  CHECK(dir.entries() == 1);  // no temporary left
}

TEST_CASE_METHOD(Fixture, "half, bfloat16 and double tensors convert to f32") {
  struct Row {
    std::string dtype;
    std::string bytes;
    float expected;
  };
  const auto raw = [](auto value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); };
  const std::vector<Row> rows = {
      {"F16", raw(std::uint16_t{0x3c00}), 1.0F},        {"F16", raw(std::uint16_t{0xc500}), -5.0F},
      {"F16", raw(std::uint16_t{0x0001}), 0x1p-24F},    {"F16", raw(std::uint16_t{0x7bff}), 65504.0F},
      {"F16", raw(std::uint16_t{0xfc00}), -HUGE_VALF},  {"BF16", raw(std::uint16_t{0x3fc0}), 1.5F},
      {"BF16", raw(std::uint16_t{0xff80}), -HUGE_VALF}, {"F64", raw(0.1), 0.1F},
  };
  for (const Row& row : rows) {
    write_bytes(dir.file("h"), with_length(fmt::format(R"({{"x":{{"dtype":"{}","shape":[1],"data_offsets":[0,{}]}}}})",
                                                       row.dtype, row.bytes.size()),
                                           row.bytes));
    const Tensor out = Tensor::zeros({1}, DType::f32, arena);
    SafetensorsReader(dir.file("h")).read("x", out);
    INFO(row.dtype);
    CHECK(out.data<float>()[0] == row.expected);
  }
}

TEST_CASE_METHOD(Fixture, "bad files give an error that says what is wrong") {
  const std::string f32 = std::string(8, '\0');
  const std::string good = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  struct Row {
    std::string bytes;
    std::string expected;
  };
  const auto entry = [&](const std::string& fields) { return with_length(R"({"x":{)" + fields + "}}", f32); };
  std::string huge_length = with_length(good, f32);
  huge_length.replace(0, 8, "\xff\xff\xff\xff\xff\xff\xff\xff");
  const std::vector<Row> rows = {
      {"", "shorter than 8 bytes"},
      {"1234567", "shorter than 8 bytes"},
      {std::string("\x10\0\0\0\0\0\0\0{}", 10), "announces 16 bytes"},
      {huge_length, "announces 18446744073709551615 bytes"},
      {with_length("", ""), "does not start"},
      {with_length(" {}", ""), "does not start"},
      {with_length("[]", ""), "does not start"},
      {with_length("{", ""), "not JSON"},
      {with_length("{}x", ""), "not JSON"},
      {with_length("{\"\xff\":1}", ""), "not JSON"},
      {with_length(R"({"x":1})", ""), "expected exactly"},
      {with_length(R"({"__metadata__":{"a":1}})", ""), "not a string"},
      {with_length(R"({"__metadata__":[]})", ""), "not an object"},
      {entry(R"("dtype":"F32","shape":[2])"), "expected exactly"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1)"), "expected exactly"},
      {entry(R"("dtype":4,"shape":[2],"data_offsets":[0,8])"), "no dtype"},
      {entry(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])"), "unknown dtype \"F33\""},
      {entry(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), "no shape"},
      {entry(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), "natural number"},
      {entry(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), "natural number"},
      {entry(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8])"), "natural number"},
      {entry(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8])"), "more than 2^62"},
      {entry(R"("dtype":"F32","shape":[1,1,1,1,1,1,2],"data_offsets":[0,8])"), "rank 7"},
      {entry(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,8])"),
       "expected 4611686018427387904 elements"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), "no pair"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), "lies at"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])"), "lies at"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[4,12])"), "lies at"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615])"), "lies at"},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])"), "has 8 bytes, expected 1"},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), "4 bytes follow"},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), "a hole before"},
      {with_length(
           R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           f32),
       "overlaps"},
      {with_length(
           R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
           f32),
       "two tensors are named \"x\""},
      {with_length(good, f32 + "z"), "1 bytes follow"},
      {with_length(good, "short"), "lies at"},
      {with_length(std::string(1000000, '['), ""), "does not start"},
      {with_length("{\"a\":" + std::string(1000000, '['), ""), "not JSON"},
  };
  for (const Row& row : rows) {
    write_bytes(dir.file("bad"), row.bytes);
    INFO(row.expected);
    const std::string text = error_of([&] { SafetensorsReader reader(dir.file("bad")); });
    INFO(text);
    CHECK(has(text, row.expected));
    CHECK(has(text, "/bad\""));
  }
  CHECK(has(error_of([&] { SafetensorsReader reader(dir.file("absent")); }), "absent"));
  CHECK(has(error_of([&] { SafetensorsReader reader(dir.path().string()); }), "not a regular file"));
}

TEST_CASE_METHOD(Fixture, "a damaged file is read right or refused, never anything else") {
  write_safetensors(dir.file("x"), {{"a", floats({3, 5}, 0)}, {"b", floats({7}, 9)}}, {{"k", "v"}});
  const std::string good = dtrun::tests::read_file(dir.file("x"));
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    for (unsigned edits = 1 + random() % 3; edits > 0; --edits) {
      const std::size_t at = random() % std::min<std::size_t>(bytes.size(), 200);
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + random() % 8);
          break;
        case 2:
          bytes.insert(at, 1, "0123456789[]{},\":-"[random() % 18]);
          break;
        default:
          bytes.resize(at + 1);
          break;
      }
    }
    write_bytes(dir.file("y"), bytes);
    try {
      const SafetensorsReader reader(dir.file("y"));
      for (const auto& [name, entry] : reader.entries()) {
        if (entry.dtype == "F32") reader.read(name, Tensor::empty(entry.shape, DType::f32, arena));
      }
    } catch (const dtrun::Error&) {
      ++refused;
    }
  }
  CHECK(refused > 2000);
}

TEST_CASE_METHOD(Fixture, "a failed write leaves the old file and nothing else") {
  write_safetensors(dir.file("x"), {{"a", floats({1}, 3)}});
  const std::string before = dtrun::tests::read_file(dir.file("x"));
  CHECK_THROWS_AS(write_safetensors(dir.file("x"), {{"a", floats({1}, 4)}, {"a", floats({1}, 4)}}), dtrun::Error);
  CHECK_THROWS_AS(write_safetensors(dir.file("x"), {{"__metadata__", floats({1}, 4)}}), dtrun::Error);
  CHECK_THROWS_AS(write_safetensors(dir.file("x"), {{"\xff", floats({1}, 4)}}), dtrun::Error);
  CHECK_THROWS_AS(write_safetensors(dir.file("x"), {{"undefined", Tensor()}}), dtrun::Error);
  CHECK_THROWS_AS(write_safetensors(dir.file("no/such/x"), {{"a", floats({1}, 4)}}), dtrun::SystemError);
  fs::create_directory(dir.file("d"));
  write_bytes(dir.file("d/keep"), "");
  CHECK_THROWS_AS(write_safetensors(dir.file("d"), {{"a", floats({1}, 4)}}), dtrun::SystemError);
  CHECK(dtrun::tests::read_file(dir.file("x")) == before);
  CHECK(dir.entries() == 2);
}

TEST_CASE_METHOD(Fixture, "loading accepts a prefix, names what is missing and what it ignored") {
  write_safetensors(dir.file("x"),
                    {{"transformer.a", floats({2}, 1)}, {"b", floats({2}, 3)}, {"attn.bias", floats({1}, 0)}});
  const SafetensorsReader reader(dir.file("x"));
  const Tensor a = Tensor::zeros({2}, DType::f32, arena);
  const Tensor b = Tensor::zeros({2}, DType::f32, arena);
  CHECK(load_tensors(reader, {{"a", a}, {"b", b}}) == std::vector<std::string>{"attn.bias"});
  CHECK(a.data<float>()[1] == 2.0F);
  CHECK(b.data<float>()[0] == 3.0F);
  CHECK(has(error_of([&] { load_tensors(reader, {{"a", a}, {"c", b}}); }), "lacks 1 of 2 tensors: c"));
}

TEST_CASE_METHOD(Fixture, "the hash sees names, elements and signs, not the order") {
  const Tensor x = floats({4}, 0);
  const Tensor y = floats({4}, 7);
  const auto hash = hash_tensors({{"x", x}, {"y", y}});
  CHECK(hash == hash_tensors({{"y", y}, {"x", x}}));
  CHECK(hash != hash_tensors({{"x", y}, {"y", x}}));
  CHECK(hash != hash_tensors({{"x", x}, {"z", y}}));
  x.data<float>()[0] = -0.0F;
  CHECK(hash != hash_tensors({{"x", x}, {"y", y}}));
  CHECK(hash_text(0x12) == "0000000000000012");
}

TEST_CASE_METHOD(Fixture, "what is not a regular file is neither waited for nor replaced") {
  const auto fifo = dir.file("fifo");
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(SafetensorsReader(fifo), Catch::Contains("not a regular file"));
  CHECK_THROWS_AS(write_safetensors(fifo, {{"a", floats({1}, 4)}}), dtrun::SystemError);
  CHECK(fs::is_fifo(fifo));
  write_safetensors(dir.file("target"), {{"a", floats({1}, 3)}});
  fs::create_symlink("target", dir.file("link"));
  const std::string before = dtrun::tests::read_file(dir.file("target"));
  write_safetensors(dir.file("link"), {{"a", floats({1}, 4)}});
  CHECK(fs::is_symlink(dir.file("link")));
  CHECK(dtrun::tests::read_file(dir.file("target")) != before);
}
