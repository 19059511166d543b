#include "worker_runtime/checkpoint/checkpoint_index.hpp"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/hash.hpp"
#include "worker_runtime/checkpoint/runs.hpp"
#include "worker_runtime/checkpoint/sealed_json.hpp"

namespace dtrun::runtime {
namespace {

using Json = nlohmann::ordered_json;
constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
// The columns of an entry.
constexpr std::array kColumns{"tensor", "first", "row_length", "row_stride", "skip", "count", "begin", "xxh64"};
constexpr std::size_t kNumbers = kColumns.size() - 1;

[[noreturn]] void fail(const std::string& what) { throw Error("checkpoint", what); }

const Json& array_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) fail(fmt::format("\"{}\" is no list", key));
  return *found;
}

CheckpointIndex::Tensor parse_tensor(const Json& json) {
  if (!json.is_array() || json.size() != 2 || !json[0].is_string() || !json[1].is_array())
    fail("a tensor is not [name, shape]");
  CheckpointIndex::Tensor tensor{.name = json[0].get<std::string>()};
  std::vector<std::int64_t> dims;
  for (const Json& dim : json[1]) {
    if (!dim.is_number_unsigned() || dim.get<std::uint64_t>() > static_cast<std::uint64_t>(kMost))
      fail(fmt::format("\"{}\" has a dimension that is no natural number", tensor.name));
    dims.push_back(dim.get<std::int64_t>());
  }
  try {
    tensor.shape = Shape(dims);
  } catch (const ShapeError& error) {
    fail(fmt::format("\"{}\": {}", tensor.name, reason_of(error)));
  }
  return tensor;
}

CheckpointEntry parse_entry(const Json& json, const CheckpointIndex& index) {
  if (!json.is_array() || json.size() != kColumns.size()) fail("an entry is no list of 8 values");
  std::array<std::int64_t, kNumbers> numbers{};
  for (std::size_t i = 0; i < kNumbers; ++i) {
    if (!json[i].is_number_unsigned() || json[i].get<std::uint64_t>() > static_cast<std::uint64_t>(kMost))
      fail(fmt::format("\"{}\" of an entry is no natural number", kColumns[i]));
    numbers[i] = json[i].get<std::int64_t>();
  }
  const auto hash = json[kNumbers].is_string() ? parse_hash(json[kNumbers].get<std::string>()) : std::nullopt;
  if (!hash) fail("\"xxh64\" of an entry is no hash of 16 digits");
  const auto [tensor, first, row_length, row_stride, skip, count, begin] = numbers;
  if (static_cast<std::size_t>(tensor) >= index.tensors.size())
    fail(fmt::format("an entry is of tensor {}, and there are {}", tensor, index.tensors.size()));
  const CheckpointEntry entry{static_cast<std::size_t>(tensor),
                              {first, row_length, row_stride, skip},
                              count,
                              static_cast<std::uint64_t>(begin),
                              *hash};
  const auto& whole = index.tensors[entry.tensor];
  const auto fault = count == 0 ? "no elements" : placement_fault(entry.where, count, whole.shape.numel());
  if (!fault.empty())
    fail(fmt::format("an entry of \"{}\" {} at {}: {}", whole.name, whole.shape.to_string(), first, fault));
  return entry;
}

CheckpointFile parse_file(const Json& json, const CheckpointIndex& index) {
  CheckpointFile file{.size = static_cast<std::uint64_t>(natural_of(json, "size", kMost)),
                      .header_hash = hash_of(json, "header_xxh64")};
  for (const Json& item : array_of(json, "entries")) {
    file.entries.push_back(parse_entry(item, index));
    const auto& entry = file.entries.back();
    if (file.entries.size() > 1) {
      const auto& before = file.entries[file.entries.size() - 2];
      if (entry.begin != before.begin + before.bytes()) fail("its entries do not lie one after another");
    }
    // A count is at most 2^62, so its bytes do not overflow when they are compared so.
    if (entry.begin > file.size || static_cast<std::uint64_t>(entry.count) > (file.size - entry.begin) / sizeof(float))
      fail(fmt::format("an entry of \"{}\" ends behind the file", index.tensors[entry.tensor].name));
  }
  if (!file.entries.empty() && file.entries.back().begin + file.entries.back().bytes() != file.size)
    fail("bytes follow its last entry");
  return file;
}

}  // namespace

std::string rank_file_name(int rank) { return fmt::format("rank_{:05}.safetensors", rank); }

std::string make_index(const CheckpointIndex& index) {
  std::string text = begin_sealed();
  const auto out = std::back_inserter(text);
  fmt::format_to(out, ",\"step\":{},\"world\":{},\"save\":{},\n\"tensors\":[", index.step, index.world,
                 Json(index.save).dump());
  const char* comma = "\n";
  for (const auto& tensor : index.tensors) {
    const auto dims = tensor.shape.dims();
    fmt::format_to(out, "{}[{},{}]", comma, Json(tensor.name).dump(),
                   Json(std::vector<std::int64_t>(dims.begin(), dims.end())).dump());
    comma = ",\n";
  }
  fmt::format_to(out, "],\n\"columns\":{},\n\"files\":[", Json(kColumns).dump());
  comma = "\n";
  for (std::size_t i = 0; i < index.files.size(); ++i) {
    const auto& file = index.files[i];
    fmt::format_to(out, "{}{{\"name\":\"{}\",\"size\":{},\"header_xxh64\":\"{}\",\"entries\":[", comma,
                   rank_file_name(static_cast<int>(i)), file.size, hash_text(file.header_hash));
    comma = "\n";
    for (const auto& entry : file.entries) {
      const auto& where = entry.where;
      fmt::format_to(out, "{}[{},{},{},{},{},{},{},\"{}\"]", comma, entry.tensor, where.first, where.row_length,
                     where.row_stride, where.skip, entry.count, entry.begin, hash_text(entry.hash));
      comma = ",\n";
    }
    text += "]}";
    comma = ",\n";
  }
  return seal_json(std::move(text += "]"));
}

CheckpointIndex parse_index(std::string_view text, IndexScope scope) {
  const Json json = parse_sealed(text);
  CheckpointIndex index{.step = natural_of(json, "step", kMost),
                        .world = static_cast<int>(natural_of(json, "world", kMostRanks)),
                        .save = text_of(json, "save")};
  std::set<std::string_view> names;
  const auto& tensors = array_of(json, "tensors");
  index.tensors.reserve(tensors.size());  // the names above are of its elements
  for (const Json& tensor : tensors) {
    index.tensors.push_back(parse_tensor(tensor));
    if (!names.insert(index.tensors.back().name).second)
      fail(fmt::format("two tensors are named \"{}\"", index.tensors.back().name));
  }
  const auto& files = array_of(json, "files");
  const auto expected = scope == IndexScope::part ? std::size_t{1} : static_cast<std::size_t>(index.world);
  if (index.world < 1 || files.size() != expected)
    fail(fmt::format("it has {} files, expected {}", files.size(), expected));
  for (const Json& item : files) {
    const auto name = rank_file_name(static_cast<int>(index.files.size()));
    if (!item.is_object() || text_of(item, "name") != name) fail(fmt::format("its file {} has another name", name));
    try {
      index.files.push_back(parse_file(item, index));
    } catch (const Error& error) {
      fail(fmt::format("{}: {}", name, reason_of(error)));
    }
  }
  if (scope == IndexScope::whole) check_coverage(index);
  return index;
}

void check_coverage(const CheckpointIndex& index) {
  std::vector<std::vector<Runs>> runs(index.tensors.size());
  for (const auto& file : index.files)
    for (const auto& entry : file.entries) runs[entry.tensor].emplace_back(entry.where, entry.count);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& tensor = index.tensors[i];
    if (const auto fault = find_coverage_fault(runs[i], tensor.shape.numel()))
      fail(fmt::format("\"{}\" {}: {}", tensor.name, tensor.shape.to_string(), fault->text()));
  }
}

CheckpointIndex merge_parts(std::vector<CheckpointIndex> parts) {
  DTRUN_ASSERT(!parts.empty());
  CheckpointIndex whole{.step = parts[0].step, .world = parts[0].world, .save = parts[0].save};
  std::map<std::string, std::pair<std::size_t, std::size_t>> known;  // name -> number, the rank that told it
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    auto& part = parts[rank];
    if (part.step != whole.step || part.world != whole.world || part.save != whole.save || part.files.size() != 1)
      fail(fmt::format("rank {} tells of another save than rank 0", rank));
    std::vector<std::size_t> numbers;
    for (auto& tensor : part.tensors) {
      const auto [place, added] = known.try_emplace(tensor.name, whole.tensors.size(), rank);
      const auto [number, first_rank] = place->second;
      numbers.push_back(number);
      if (added) {
        whole.tensors.push_back(std::move(tensor));
      } else if (whole.tensors[number].shape != tensor.shape) {
        fail(fmt::format("\"{}\" is {} on rank {}, and {} on rank {}", tensor.name,
                         whole.tensors[number].shape.to_string(), first_rank, tensor.shape.to_string(), rank));
      }
    }
    for (auto& entry : part.files[0].entries) entry.tensor = numbers[entry.tensor];
    whole.files.push_back(std::move(part.files[0]));
  }
  check_coverage(whole);
  return whole;
}

}  // namespace dtrun::runtime
