#include "worker_runtime/checkpoint/sealed_json.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/hash.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::string_view kFormat = "dtrun checkpoint";
constexpr std::int64_t kVersion = 1;
constexpr std::string_view kBefore = ",\n\"xxh64\":\"", kAfter = "\"}\n";
constexpr std::size_t kSeal = kBefore.size() + 16 + kAfter.size();

std::uint64_t hash_of_text(std::string_view text) { return hash_bytes(std::as_bytes(std::span(text))); }

const nlohmann::ordered_json& value_of(const nlohmann::ordered_json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) throw Error("checkpoint", fmt::format("\"{}\" is missing", key));
  return *found;
}

}  // namespace

std::string begin_sealed() { return fmt::format("{{\"format\":\"{}\",\"version\":{}", kFormat, kVersion); }

std::string seal_json(std::string text) {
  const auto hash = hash_text(hash_of_text(text));
  return text.append(kBefore).append(hash).append(kAfter);
}

std::uint64_t check_seal(std::string_view text) {
  const auto damaged = [](std::string_view what) {
    return Error("checkpoint", fmt::format("it is damaged: {}", what));
  };
  if (text.size() < kSeal) throw damaged("it is too short");
  const auto seal = text.substr(text.size() - kSeal);
  const auto hash = parse_hash(seal.substr(kBefore.size(), 16));
  if (!hash || !seal.starts_with(kBefore) || !seal.ends_with(kAfter)) throw damaged("it does not end with its hash");
  if (*hash != hash_of_text(text.substr(0, text.size() - kSeal))) throw damaged("its hash is another one");
  return *hash;
}

nlohmann::ordered_json parse_sealed(std::string_view text) {
  check_seal(text);
  nlohmann::ordered_json json;
  try {
    json = nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw Error("checkpoint", fmt::format("it is not JSON: {}", error.what()));
  }
  if (!json.is_object() || json.value("format", nlohmann::ordered_json()) != kFormat)
    throw Error("checkpoint", fmt::format("its format is not \"{}\"", kFormat));
  if (json.value("version", nlohmann::ordered_json()) != kVersion)
    throw Error("checkpoint", fmt::format("its version is not {}", kVersion));
  return json;
}

std::int64_t natural_of(const nlohmann::ordered_json& object, const char* key, std::int64_t most) {
  const auto& value = value_of(object, key);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(most))
    throw Error("checkpoint", fmt::format("\"{}\" is no number from 0 to {}", key, most));
  return value.get<std::int64_t>();
}

std::string text_of(const nlohmann::ordered_json& object, const char* key) {
  const auto& value = value_of(object, key);
  if (!value.is_string()) throw Error("checkpoint", fmt::format("\"{}\" is no text", key));
  return value.get<std::string>();
}

std::uint64_t hash_of(const nlohmann::ordered_json& object, const char* key) {
  const auto hash = parse_hash(text_of(object, key));
  if (!hash) throw Error("checkpoint", fmt::format("\"{}\" is no hash of 16 digits", key));
  return *hash;
}

}  // namespace dtrun::runtime
