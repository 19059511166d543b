// BpeTokenizer from vocab.json and merges.txt as Hugging Face writes them.
#include <fmt/format.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/data/bpe_tokenizer.hpp"
#include "worker_runtime/data/mapped_file.hpp"

namespace dtrun::runtime {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kMostFileBytes = std::int64_t{256} << 20;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
constexpr std::size_t kMostShown = 60;

using Vocabulary = std::unordered_map<std::string, std::int32_t>;

// In these files every byte is a character: printable ones of Latin-1 are themselves, the others follow U+0100.
std::array<char32_t, 256> characters_of_bytes() {
  std::array<char32_t, 256> result{};
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    result[byte] = printable ? byte : next++;
  }
  return result;
}

// Of characters below U+0800, as all of these are.
std::string utf8(char32_t character) {
  if (character < 128) return {static_cast<char>(character)};
  return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

// The bytes that a token stands for. A token of other characters (added to the vocabulary) stands for itself.
std::string bytes_of(const std::string& token, const std::map<std::string, char>& byte_of_character) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const std::size_t length = static_cast<unsigned char>(token[at]) < 128 ? 1 : 2;
    const auto found = byte_of_character.find(token.substr(at, length));
    if (found == byte_of_character.end()) return token;
    bytes += found->second;
    at += length;
  }
  return bytes;
}

MappedFile open_part(const fs::path& directory, const char* name) {
  auto file = map_file(directory / name, "tokenizer file");
  if (file.bytes <= kMostFileBytes) return file;
  throw UsageError("data", fmt::format("tokenizer file \"{}\": {} bytes, expected at most {}",
                                       (directory / name).string(), file.bytes, kMostFileBytes));
}

void require_directory(const fs::path& directory) {
  std::error_code ignored;
  const auto refuse = [&](std::string_view why) {
    throw UsageError("data", fmt::format("tokenizer \"{}\": {}expected a directory with vocab.json and merges.txt of a "
                                         "byte-level BPE, as Hugging Face has them for GPT-2",
                                         directory.string(), why));
  };
  if (!fs::exists(directory, ignored)) refuse("there is no such directory; ");
  if (!fs::is_directory(directory, ignored)) refuse("is a file, ");
  const bool both = fs::exists(directory / "vocab.json", ignored) && fs::exists(directory / "merges.txt", ignored);
  if (both) return;
  if (fs::exists(directory / "tokenizer.json", ignored)) refuse("has a tokenizer.json alone, which is not read; ");
  refuse(fs::exists(directory / "vocab.json", ignored) ? "has no merges.txt; " : "has no vocab.json; ");
}

Vocabulary read_vocabulary(const fs::path& directory) {
  const auto refuse = [&](const std::string& why) {
    return UsageError("data", fmt::format("tokenizer file \"{}\": {}", (directory / "vocab.json").string(), why));
  };
  const auto file = open_part(directory, "vocab.json");
  const auto json = nlohmann::json::parse(file.text(), nullptr, false);
  if (!json.is_object()) throw refuse("expected a JSON object of tokens and their numbers");
  Vocabulary vocabulary;
  std::vector<bool> taken;
  for (const auto& [token, number] : json.items()) {
    const bool good = number.is_number_integer() && number >= 0 && number < kMostTokens;
    if (!good || token.empty()) {
      throw refuse(fmt::format("token \"{}\" has the number {}, expected 0 to {}", token.substr(0, kMostShown),
                               number.dump().substr(0, kMostShown), kMostTokens - 1));
    }
    const auto id = number.get<std::size_t>();
    if (id >= taken.size()) taken.resize(id + 1);
    if (taken[id]) throw refuse(fmt::format("two tokens have the number {}", id));
    taken[id] = true;
    vocabulary.emplace(token, static_cast<std::int32_t>(id));
  }
  return vocabulary;
}

void read_merges(const fs::path& directory, const Vocabulary& vocabulary, BytePairs& pairs) {
  const auto file = open_part(directory, "merges.txt");
  auto rest = file.text();
  std::int32_t rank = 0;
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    auto line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const auto refuse = [&](std::string_view why) {
      return UsageError(
          "data", fmt::format("tokenizer file \"{}\", line {}: \"{}\": {}", (directory / "merges.txt").string(), number,
                              line.substr(0, kMostShown), why));
    };
    const auto space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
      throw refuse("expected two tokens with a space between them");
    const std::string left(line.substr(0, space)), right(line.substr(space + 1));
    const auto a = vocabulary.find(left), b = vocabulary.find(right), both = vocabulary.find(left + right);
    if (a == vocabulary.end() || b == vocabulary.end() || both == vocabulary.end())
      throw refuse("expected tokens of vocab.json that are one together");
    if (!pairs.add(a->second, b->second, {rank++, both->second})) throw refuse("is there twice");
  }
}

}  // namespace

BpeTokenizer BpeTokenizer::from_directory(const fs::path& directory) {
  require_directory(directory);
  const auto vocabulary = read_vocabulary(directory);
  const auto characters = characters_of_bytes();
  std::map<std::string, char> byte_of_character;
  std::array<std::int32_t, 256> tokens_of_bytes{};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const auto character = utf8(characters[byte]);
    byte_of_character[character] = static_cast<char>(byte);
    const auto token = vocabulary.find(character);
    if (token == vocabulary.end()) {
      throw UsageError("data",
                       fmt::format("tokenizer file \"{}\": byte {} (\"{}\") has no token, expected one for each "
                                   "byte: a byte-level BPE",
                                   (directory / "vocab.json").string(), byte, character));
    }
    tokens_of_bytes[byte] = token->second;
  }
  BytePairs pairs(tokens_of_bytes);
  read_merges(directory, vocabulary, pairs);
  std::int32_t last = 0;
  for (const auto& [token, id] : vocabulary) last = std::max(last, id);
  std::vector<std::string> bytes(static_cast<std::size_t>(last) + 1);
  for (const auto& [token, id] : vocabulary) bytes[static_cast<std::size_t>(id)] = bytes_of(token, byte_of_character);
  return {std::move(pairs), std::move(bytes)};
}

}  // namespace dtrun::runtime
