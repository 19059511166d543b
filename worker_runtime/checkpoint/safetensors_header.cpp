#include "worker_runtime/checkpoint/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::array<std::pair<std::string_view, std::size_t>, 15> kTypes{{
    {"F32", 4},
    {"BF16", 2},
    {"F16", 2},
    {"F64", 8},
    {"I64", 8},
    {"I32", 4},
    {"I16", 2},
    {"I8", 1},
    {"U64", 8},
    {"U32", 4},
    {"U16", 2},
    {"U8", 1},
    {"BOOL", 1},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
}};

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error("checkpoint", fmt::format("\"{}\" is not a good safetensors file: {}", path, what));
}

// nlohmann keeps the last of two equal keys; here that would hide a tensor.
Json parse_without_duplicates(std::string_view text, const std::string& path) {
  std::set<std::string> names;
  std::string duplicate;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& key) {
    if (event == Json::parse_event_t::key && depth == 1 && !names.insert(key.get<std::string>()).second) {
      duplicate = key.get<std::string>();
    }
    return true;
  };
  try {
    Json json = Json::parse(text, watch);
    if (!duplicate.empty()) fail(path, fmt::format("two tensors are named \"{}\"", duplicate));
    return json;
  } catch (const Json::exception& error) {
    fail(path, fmt::format("the header is not JSON: {}", error.what()));
  }
}

// A JSON integer from 0 to 2^63 - 1; -1 for anything else.
std::int64_t natural(const Json& json) {
  if (!json.is_number_unsigned()) return -1;
  const auto value = json.get<std::uint64_t>();
  return value > static_cast<std::uint64_t>(INT64_MAX) ? -1 : static_cast<std::int64_t>(value);
}

Shape parse_shape(const Json& json, const std::string& where, const std::string& path) {
  if (!json.is_array()) fail(path, where + " has no shape");
  std::vector<std::int64_t> dims;
  for (const Json& dim : json) {
    dims.push_back(natural(dim));
    if (dims.back() < 0) fail(path, where + " has a dimension that is not a natural number");
  }
  try {
    return Shape(dims);
  } catch (const ShapeError& error) {
    fail(path, fmt::format("{}: {}", where, error.what()));
  }
}

SafetensorsEntry parse_entry(const std::string& name, const Json& json, std::uint64_t data_bytes,
                             const std::string& path) {
  const std::string where = fmt::format("tensor \"{}\"", name);
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    fail(path, where + ": expected exactly dtype, shape and data_offsets");
  }
  SafetensorsEntry entry;
  if (!json["dtype"].is_string()) fail(path, where + " has no dtype");
  entry.dtype = json["dtype"].get<std::string>();
  const std::size_t size = safetensors_element_size(entry.dtype);
  if (size == 0) fail(path, fmt::format("{} has the unknown dtype \"{}\"", where, entry.dtype));
  entry.shape = parse_shape(json["shape"], where, path);
  const Json& offsets = json["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) fail(path, where + " has no pair of data_offsets");
  const std::int64_t begin = natural(offsets[0]);
  const std::int64_t end = natural(offsets[1]);
  if (begin < 0 || end < begin || static_cast<std::uint64_t>(end) > data_bytes) {
    fail(path, fmt::format("{} lies at {}, the data has {} bytes", where, offsets.dump(), data_bytes));
  }
  entry.begin = static_cast<std::uint64_t>(begin);
  entry.bytes = static_cast<std::uint64_t>(end - begin);
  // At most 2^62 elements of 8 bytes: compare by division, the product could overflow.
  if (entry.bytes % size != 0 || entry.bytes / size != static_cast<std::uint64_t>(entry.shape.numel())) {
    fail(path, fmt::format("{} has {} bytes, expected {} elements of {}", where, entry.bytes, entry.shape.numel(),
                           entry.dtype));
  }
  return entry;
}

void check_coverage(const SafetensorsHeader& header, std::uint64_t data_bytes, const std::string& path) {
  std::vector<std::pair<std::uint64_t, const std::pair<const std::string, SafetensorsEntry>*>> order;
  for (const auto& item : header.entries) order.emplace_back(item.second.begin, &item);
  std::ranges::sort(order, [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second->second.bytes) < std::pair(b.first, b.second->second.bytes);
  });
  std::uint64_t at = 0;
  for (const auto& [begin, item] : order) {
    if (begin != at) {
      fail(path, fmt::format("tensor \"{}\" starts at byte {}, expected {}: {}", item->first, begin, at,
                             begin < at ? "it overlaps another one" : "there is a hole before it"));
    }
    at += item->second.bytes;
  }
  if (at != data_bytes) fail(path, fmt::format("{} bytes follow the last tensor", data_bytes - at));
}

}  // namespace

std::size_t safetensors_element_size(std::string_view dtype) noexcept {
  const auto found = std::ranges::find(kTypes, dtype, [](const auto& type) { return type.first; });
  return found == kTypes.end() ? 0 : found->second;
}

std::string_view safetensors_dtype(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
    case DType::u8:
      return "U8";
  }
  return "";
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes, const std::string& path) {
  if (text.empty() || text.front() != '{') fail(path, "the header does not start with \"{\"");
  const Json json = parse_without_duplicates(text, path);
  SafetensorsHeader header;
  for (const auto& [name, value] : json.items()) {
    if (name != kMetadata) {
      header.entries.emplace(name, parse_entry(name, value, data_bytes, path));
      continue;
    }
    if (!value.is_object()) fail(path, "__metadata__ is not an object");
    for (const auto& [key, text_value] : value.items()) {
      if (!text_value.is_string()) fail(path, fmt::format("__metadata__ \"{}\" is not a string", key));
      header.metadata.emplace(key, text_value.get<std::string>());
    }
  }
  check_coverage(header, data_bytes, path);
  return header;
}

std::string make_safetensors_header(const std::vector<TensorDescription>& tensors,
                                    const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  std::set<std::string_view> names{kMetadata};
  if (!metadata.empty()) json[std::string(kMetadata)] = metadata;
  std::uint64_t at = 0;
  for (const TensorDescription& item : tensors) {
    if (!names.insert(item.name).second)
      throw Error("checkpoint", fmt::format("two tensors to write are named \"{}\"", item.name));
    const std::uint64_t end = at + static_cast<std::uint64_t>(item.shape.numel()) * size_of(item.dtype);
    json[item.name] = {{"dtype", safetensors_dtype(item.dtype)},
                       {"shape", std::vector<std::int64_t>(item.shape.dims().begin(), item.shape.dims().end())},
                       {"data_offsets", {at, end}}};
    at = end;
  }
  try {
    std::string text = json.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    return text;
  } catch (const Json::exception& error) {  // a name that is not UTF-8
    throw Error("checkpoint", fmt::format("cannot name the tensors in JSON: {}", error.what()));
  }
}

}  // namespace dtrun::runtime
