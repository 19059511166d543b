#include "worker_runtime/checkpoint/checkpoint_meta.hpp"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/hash.hpp"
#include "worker_runtime/checkpoint/sealed_json.hpp"

namespace dtrun::runtime {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::uint64_t kLargestMeta = std::uint64_t{16} << 20;
constexpr std::uint64_t kLargestIndex = std::uint64_t{512} << 20;

// The file's name alone: whoever asks knows the directory.
template <class Read>
auto read_named(const std::filesystem::path& directory, const char* name, std::uint64_t largest, Read&& parse) {
  try {
    return parse(read_whole((directory / name).string(), largest));
  } catch (const std::exception& error) {
    throw Error("checkpoint", fmt::format("{}: {}", name, reason_of(error)));
  }
}

}  // namespace

std::string make_meta(const CheckpointMetaFile& file) {
  const Json run = Json::parse(file.meta.run, nullptr, false);
  if (!run.is_object()) throw Error("checkpoint", "what the run wrote down is no JSON object");
  return seal_json(fmt::format(
      "{},\"step\":{},\"world\":{},\"save\":{},\"sequence\":{},\"index_xxh64\":\"{}\",\n\"run\":{}", begin_sealed(),
      file.meta.step, file.world, Json(file.save).dump(), file.sequence, hash_text(file.index_hash), run.dump()));
}

CheckpointMetaFile parse_meta(std::string_view text) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max() - 1;
  const Json json = parse_sealed(text);
  const auto run = json.find("run");
  if (run == json.end() || !run->is_object()) throw Error("checkpoint", "\"run\" is no object");
  return {.meta = {.step = natural_of(json, "step", kMost), .run = run->dump()},
          .world = static_cast<int>(natural_of(json, "world", kMostRanks)),
          .save = text_of(json, "save"),
          .sequence = natural_of(json, "sequence", kMost),
          .index_hash = hash_of(json, "index_xxh64")};
}

std::string make_save_word() {
  std::random_device random;
  return hash_text((std::uint64_t{random()} << 32) | random());
}

void write_descriptions(const std::filesystem::path& directory, const CheckpointIndex& index, CheckpointMetaFile meta) {
  const auto text = make_index(index);
  meta.index_hash = check_seal(text);
  write_text(directory / "index.json", text);
  write_text(directory / "meta.json", make_meta(meta));
}

CheckpointMetaFile read_meta(const std::filesystem::path& step_directory) {
  return read_named(step_directory, "meta.json", kLargestMeta, parse_meta);
}

CheckpointIndex read_index(const std::filesystem::path& step_directory, const CheckpointMetaFile& meta) {
  return read_named(step_directory, "index.json", kLargestIndex, [&](const std::string& text) {
    if (check_seal(text) != meta.index_hash)
      throw Error("checkpoint", "it is not the one that meta.json was written with");
    auto index = parse_index(text);
    if (index.step != meta.meta.step || index.world != meta.world || index.save != meta.save)
      throw Error("checkpoint", "its step, world or save is not that of meta.json");
    return index;
  });
}

}  // namespace dtrun::runtime
