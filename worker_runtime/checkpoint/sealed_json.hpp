// JSON objects whose last key "xxh64" is the hash of all text before it, so that no flipped bit goes unseen.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace dtrun::runtime {

// `text`: an object with at least one key and without its last "}".
std::string seal_json(std::string text);
// The hash that a sealed text ends with. Throws Error when there is none or it is not that of the text.
std::uint64_t check_seal(std::string_view text);
// After check_seal: the object. Throws Error when it is not JSON, or not of a checkpoint of a version known here.
nlohmann::ordered_json parse_sealed(std::string_view text);
// The beginning of such a text, up to and without the comma behind "version".
std::string begin_sealed();

// Values of an object. They throw Error naming the key when it is missing or of another kind.
std::int64_t natural_of(const nlohmann::ordered_json& object, const char* key, std::int64_t most);
std::string text_of(const nlohmann::ordered_json& object, const char* key);
std::uint64_t hash_of(const nlohmann::ordered_json& object, const char* key);

}  // namespace dtrun::runtime
