// index.json and meta.json as texts, also of people who mean harm.
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "worker_runtime/checkpoint/checkpoint_index.hpp"
#include "worker_runtime/checkpoint/checkpoint_meta.hpp"
#include "worker_runtime/checkpoint/sealed_json.hpp"

using namespace dtrun::runtime;
using Json = nlohmann::ordered_json;

namespace {

CheckpointIndex sample() {
  CheckpointIndex index{.step = 120, .world = 2, .save = "word"};
  index.tensors = {{"a \"quoted\"", {2, 3}}, {"b", {4}}, {"scalar", {}}, {"empty", {0, 3}}};
  index.files = {{.size = 64 + 16 + 16, .header_hash = 7, .entries = {{0, {0, 2, 3, 0}, 4, 64, 1}, {1, {}, 4, 80, 2}}},
                 {.size = 80 + 8 + 4, .header_hash = 8, .entries = {{0, {2, 1, 3, 0}, 2, 80, 3}, {2, {}, 1, 88, 4}}}};
  return index;
}

// The text of an index after a change that keeps its seal whole.
std::string changed(const std::function<void(Json&)>& change) {
  auto json = Json::parse(make_index(sample()));
  json.erase("xxh64");
  change(json);
  auto text = json.dump();
  text.pop_back();
  return seal_json(text);
}

std::string error_of(const std::string& text) {
  try {
    static_cast<void>(parse_index(text));
    return {};
  } catch (const dtrun::Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("an index comes back from its text") {
  const auto text = make_index(sample());
  const auto index = parse_index(text);
  CHECK(make_index(index) == text);
  CHECK(index.tensors[0].name == "a \"quoted\"");
  CHECK(index.tensors[0].shape == Shape{2, 3});
  CHECK(index.files[1].entries[0].where.row_stride == 3);
  CHECK(index.files[1].entries[0].hash == 3);
  CHECK(index.files[1].header_bytes() == 80);
  CHECK(Json::parse(text)["columns"].size() == Json::parse(text)["files"][0]["entries"][0].size());
}

TEST_CASE("a byte that is changed anywhere in index.json or meta.json is seen, and so is a cut") {
  const auto index = make_index(sample());
  const auto meta =
      make_meta({.meta = {120, R"({"seed":1})"}, .world = 2, .save = "word", .sequence = 3, .index_hash = 9});
  for (const auto& text : {index, meta}) {
    for (std::size_t at = 0; at < text.size(); ++at) {
      auto other = text;
      other[at] = static_cast<char>(other[at] ^ 1);
      REQUIRE_THROWS_AS(check_seal(other), dtrun::Error);
      REQUIRE_THROWS_AS(check_seal(text.substr(0, at)), dtrun::Error);
    }
    CHECK_NOTHROW(check_seal(text));
    CHECK_THROWS_AS(check_seal(text + "\n"), dtrun::Error);
  }
}

TEST_CASE("an index that does not fit itself is refused with the reason") {
  struct Row {
    const char* what;
    std::function<void(Json&)> change;
    std::string error;
  };
  const auto entry = [](int file, int number, int column, const Json& value) {
    return [=](Json& json) { json["files"][file]["entries"][number][column] = value; };
  };
  const std::vector<Row> rows{
      {"nothing", [](Json&) {}, ""},
      {"format", [](Json& json) { json["format"] = "zip"; }, "format"},
      {"version", [](Json& json) { json["version"] = 2; }, "version"},
      {"no step", [](Json& json) { json.erase("step"); }, "\"step\" is missing"},
      {"step", [](Json& json) { json["step"] = -1; }, "\"step\" is no number"},
      {"world", [](Json& json) { json["world"] = 3; }, "2 files, expected 3"},
      {"no ranks", [](Json& json) { json["world"] = 0, json["files"] = Json::array(); }, "0 files"},
      {"large world", [](Json& json) { json["world"] = 4000000000U; }, "\"world\""},
      {"files", [](Json& json) { json["files"] = 3; }, "\"files\" is no list"},
      {"path", [](Json& json) { json["files"][0]["name"] = "../../etc/passwd"; }, "has another name"},
      {"exchanged", [](Json& json) { json["files"][0]["name"] = "rank_00001.safetensors"; }, "has another name"},
      {"names", [](Json& json) { json["tensors"][1][0] = "scalar"; }, "two tensors are named \"scalar\""},
      {"shape",
       [](Json& json) {
         json["tensors"][1][1] = Json{4, 4};
       },
       "elements 4 to 16 are missing"},
      {"negative", [](Json& json) { json["tensors"][1][1] = Json{-4}; }, "no natural number"},
      {"huge",
       [](Json& json) {
         json["tensors"][1][1] = Json{1LL << 62, 4};
       },
       "\"b\""},
      {"rank", [](Json& json) { json["tensors"][1][1] = Json{1, 1, 1, 1, 1, 1, 4}; }, "\"b\""},
      {"tensor", entry(0, 0, 0, 4), "an entry is of tensor 4"},
      {"fraction", entry(0, 0, 0, 0.5), "\"tensor\" of an entry is no natural number"},
      {"overlap", entry(1, 0, 1, 1), "there twice"},
      {"outside", entry(1, 0, 1, 5), "\"a \\\"quoted\\\"\""},
      {"overflow", entry(1, 0, 3, std::numeric_limits<std::int64_t>::max()), "behind the tensor"},
      {"too large", entry(1, 0, 3, std::numeric_limits<std::uint64_t>::max()), "no natural number"},
      {"count", entry(1, 0, 5, std::numeric_limits<std::int64_t>::max()), "behind the tensor"},
      {"no elements", entry(1, 0, 5, 0), "no elements"},
      {"begin", entry(0, 1, 6, 84), "one after another"},
      {"both in one place", entry(0, 1, 6, 64), "one after another"},
      {"behind the file", [](Json& json) { json["files"][0]["size"] = 95; }, "ends behind the file"},
      {"begins behind", entry(0, 0, 6, std::numeric_limits<std::int64_t>::max()), "ends behind the file"},
      {"bytes follow", [](Json& json) { json["files"][0]["size"] = 100; }, "bytes follow"},
      {"hash", entry(0, 0, 7, "0x"), "no hash"},
      {"columns", [](Json& json) { json["files"][0]["entries"][0].push_back(1); }, "8 values"},
      {"a list", [](Json& json) { json["files"][0] = Json::array(); }, "has another name"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.what);
    const auto error = error_of(changed(row.change));
    if (row.error.empty()) {
      CHECK(error.empty());
    } else if (row.what != std::string("outside")) {
      CHECK_THAT(error, Catch::Contains(row.error));
    } else {
      CHECK_FALSE(error.empty());
    }
  }
  CHECK_THAT(error_of(seal_json("{\"format\":")), Catch::Contains("JSON"));
  CHECK_THAT(error_of(seal_json(std::string(100000, '['))), Catch::Contains("JSON"));
}

TEST_CASE("any value in any place of an index is refused or fits") {
  std::mt19937 random(31);
  const std::vector<Json> values{0,
                                 1,
                                 3,
                                 -1,
                                 1LL << 62,
                                 std::numeric_limits<std::uint64_t>::max(),
                                 0.5,
                                 "x",
                                 nullptr,
                                 Json::array(),
                                 Json::object()};
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto text = changed([&](Json& json) {
      const auto flat = json.flatten();
      const auto place = std::next(flat.begin(), static_cast<std::ptrdiff_t>(random() % flat.size()));
      json[Json::json_pointer(place.key())] = values[random() % values.size()];
    });
    std::optional<CheckpointIndex> index;
    try {
      index = parse_index(text);
    } catch (const dtrun::Error&) {
      ++refused;
    }
    if (index) CHECK(make_index(parse_index(make_index(*index))) == make_index(*index));
  }
  CHECK(refused > 1000);
}

TEST_CASE("the parts of ranks become one index, or what contradicts is named") {
  const auto whole = sample();
  const auto parts_of = [&] {
    std::vector<CheckpointIndex> parts;
    for (const auto& file : whole.files) {
      parts.push_back(whole);
      parts.back().files = {file};
      parts.back() = parse_index(make_index(parts.back()), IndexScope::part);
    }
    return parts;
  };
  CHECK(make_index(merge_parts(parts_of())) == make_index(whole));
  auto parts = parts_of();  // other numbers on rank 1
  parts[1].tensors = {{"scalar", {}}, {"a \"quoted\"", {2, 3}}};
  parts[1].files[0].entries[0].tensor = 1;
  parts[1].files[0].entries[1].tensor = 0;
  CHECK(make_index(merge_parts(parts)) == make_index(whole));
  parts[1].tensors[0].shape = {1};
  CHECK_THROWS_WITH(merge_parts(parts), Catch::Contains("\"scalar\" is [] on rank 0, and [1] on rank 1"));
  parts = parts_of();
  parts[1].step = 121;
  CHECK_THROWS_WITH(merge_parts(parts), Catch::Contains("rank 1 tells of another save"));
  parts = parts_of();
  parts[1].files[0].entries.pop_back();
  CHECK_THROWS_WITH(merge_parts(parts), Catch::Contains("\"scalar\" []: elements 0 to 1 are missing"));
}

TEST_CASE("meta.json keeps what the run wrote down, and nothing but objects") {
  const CheckpointMetaFile file{
      .meta = {120, R"({"z":1.5,"a":[1,{"b":"ü"}]})"}, .world = 3, .save = "word", .sequence = 4, .index_hash = 9};
  const auto back = parse_meta(make_meta(file));
  CHECK(back.meta.step == 120);
  CHECK(back.meta.run == file.meta.run);
  CHECK(back.world == 3);
  CHECK(back.save == "word");
  CHECK(back.sequence == 4);
  CHECK(back.index_hash == 9);
  for (const auto* run : {"", "[]", "1", "{", "{\"a\":}"}) CHECK_THROWS_AS(make_meta({.meta = {1, run}}), dtrun::Error);
  CHECK_THROWS_WITH(parse_meta(seal_json(begin_sealed() + R"(,"step":1)")), Catch::Contains("\"run\""));
}
