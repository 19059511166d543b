#include "worker_runtime/worker/json_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

using nlohmann::json;

// nlohmann's text without its number, name and place.
std::string reason_of(const json::parse_error& error) {
  std::string_view text = error.what();
  for (const std::string_view end : {"parse error", ": "}) {
    if (const auto at = text.find(end); at != std::string_view::npos) text.remove_prefix(at + end.size());
  }
  return std::string(text);
}

// A regular file; a FIFO would be read by one rank and make the others wait.
std::string read_text(const std::string& path, std::string_view source) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw UsageError("train", fmt::format("{}: there is no such file", source));
  if (!std::filesystem::is_regular_file(status)) {
    throw UsageError("train", fmt::format("{}: is {}, expected a file", source,
                                          std::filesystem::is_directory(status) ? "a directory" : "no regular file"));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) throw UsageError("train", fmt::format("{}: the file cannot be read", source));
  return text;
}

}  // namespace

std::string place_in(std::string_view text, std::size_t offset) {
  const auto before = text.substr(0, offset == 0 ? 0 : std::min(offset - 1, text.size()));
  const auto last = before.rfind('\n');
  const auto column = last == std::string_view::npos ? before.size() : before.size() - last - 1;
  return fmt::format("line {}, column {}", std::ranges::count(before, '\n') + 1, column + 1);
}

json read_json_file(const std::string& path, std::string_view source) {
  const auto text = read_text(path, source);
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    throw UsageError("train",
                     fmt::format("{}: {}: not JSON: {}", source, place_in(text, error.byte), reason_of(error)));
  }
}

}  // namespace dtrun::runtime
