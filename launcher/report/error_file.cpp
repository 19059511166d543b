#include "launcher/report/error_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>

#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/base/whole_file.hpp"

namespace dtrun::launcher {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

std::string errno_text(int error) { return std::generic_category().message(error); }

// Nothing and an empty note: there is no such file.
std::optional<std::string> read_bounded(const std::string& path, std::string& note) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    if (errno != ENOENT && errno != ENOTDIR)
      note = fmt::format("error file {} cannot be read: {}", path, errno_text(errno));
    return std::nullopt;
  }
  struct stat info {};
  if (::fstat(fd.value(), &info) != 0 || !S_ISREG(info.st_mode)) {
    note = fmt::format("error file {} is not a regular file", path);
    return std::nullopt;
  }
  std::string text(std::min(static_cast<std::size_t>(info.st_size), kMaxFileBytes + 1), '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = ::read(fd.value(), text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    size += static_cast<std::size_t>(n);
  }
  text.resize(size);
  if (size > kMaxFileBytes) {
    note = fmt::format("error file {} is larger than 1 MiB and was not read", path);
    return std::nullopt;
  }
  return text;
}

const json* member(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(name);
  return at == object.end() ? nullptr : &*at;
}

std::string string_member(const json& object, const char* name) {
  const auto* value = member(object, name);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

// A number, or its text as torch writes it.
double time_member(const json& object, const char* name) {
  const auto* value = member(object, name);
  if (value == nullptr) return 0;
  double seconds = 0;
  if (value->is_number()) seconds = value->get<double>();
  if (value->is_string()) seconds = std::strtod(value->get_ref<const std::string&>().c_str(), nullptr);
  return std::isfinite(seconds) && seconds > 0 ? seconds : 0;
}

// "... rank 12 is missing ..."
std::optional<int> missing_rank(std::string_view text) {
  const auto end = text.find(" is missing");
  if (end == std::string_view::npos) return {};
  const auto start = text.rfind("rank ", end);
  int rank = -1;
  if (start == std::string_view::npos) return {};
  const auto [stop, error] = std::from_chars(text.data() + start + 5, text.data() + end, rank);
  return error == std::errc() && stop == text.data() + end && rank >= 0 ? std::optional(rank) : std::nullopt;
}

std::optional<int> blamed_rank(const json& extra, std::string_view text) {
  const auto* rank = member(extra, "blames_rank");
  if (rank != nullptr && rank->is_number_integer() && *rank >= 0 && *rank < (1 << 20)) return rank->get<int>();
  return missing_rank(text);
}

}  // namespace

ErrorFile read_error_file(const std::string& path) {
  ErrorFile result;
  if (path.empty()) return result;
  const auto text = read_bounded(path, result.note);
  result.present = text.has_value() || !result.note.empty();
  if (!text) return result;
  const auto document = json::parse(*text, nullptr, false);
  const auto* message = document.is_discarded() ? nullptr : member(document, "message");
  if (message == nullptr || !(message->is_string() || message->is_object())) {
    result.note = text->empty() ? fmt::format("error file {} is empty", path)
                                : fmt::format("error file {} is not what torch's @record writes: {}", path,
                                              document.is_discarded() ? "no valid JSON" : "no \"message\"");
    return result;
  }
  if (message->is_string()) {
    result.message = message->get<std::string>();
    result.timestamp = time_member(document, "timestamp");
    result.blames_rank = missing_rank(result.message);
    return result;
  }
  result.message = string_member(*message, "message");
  if (const auto* extra = member(*message, "extraInfo")) {
    result.traceback = string_member(*extra, "py_callstack");
    result.timestamp = time_member(*extra, "timestamp");
    result.blames_rank = blamed_rank(*extra, result.message);
    const auto* retry = member(*extra, "retry");
    result.retry = retry == nullptr || *retry != false;
  }
  if (result.message.empty()) result.note = fmt::format("error file {} has an empty message", path);
  return result;
}

std::string copy_error_file(const std::string& from, const std::string& to, int exit_code) {
  std::string note;
  const auto text = read_bounded(from, note);
  if (!text) return note.empty() ? fmt::format("error file {} does not exist", from) : note;
  auto document = json::parse(*text, nullptr, false);
  if (document.is_discarded()) return fmt::format("error file {} has no valid JSON", from);
  if (document.is_object() && document.contains("message") && document["message"].is_object()) {
    document["message"]["errorCode"] = exit_code;
  }
  return write_file_whole(to, document.dump(-1, ' ', true, json::error_handler_t::replace));
}

std::string write_error_file(const std::string& path, const ErrorDocument& document) {
  return write_file_whole(path, to_json(document));
}

}  // namespace dtrun::launcher
