#include "worker_runtime/worker/error_file.hpp"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/base/whole_file.hpp"
#include "rendezvous/contract/environment.hpp"
#include "rendezvous/contract/error_document.hpp"

namespace dtrun::runtime {

std::string error_kind(const std::exception& error) {
  if (dynamic_cast<const CommError*>(&error) != nullptr) return "CommError";
  if (dynamic_cast<const UsageError*>(&error) != nullptr) return "UsageError";
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) return "TimeoutError";
  if (dynamic_cast<const RendezvousError*>(&error) != nullptr) return "RendezvousError";
  if (dynamic_cast<const ShapeError*>(&error) != nullptr) return "ShapeError";
  if (dynamic_cast<const SystemError*>(&error) != nullptr) return "SystemError";
  if (dynamic_cast<const MemoryError*>(&error) != nullptr) return "OutOfMemory";
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "OutOfMemory";
  return "Error";
}

namespace {

// The number behind the first "rank " in `text`.
std::optional<int> rank_in(std::string_view text) {
  const auto start = text.find("rank ");
  if (start == std::string_view::npos) return {};
  int rank = 0;
  const auto digits = text.substr(start + 5);
  return std::from_chars(digits.data(), digits.data() + digits.size(), rank).ec == std::errc() ? std::optional(rank)
                                                                                               : std::nullopt;
}

struct Blame {
  std::optional<int> rank;
  bool missing = false;  // it never came; otherwise it left, for a reason of its own
};

// The rank that was waited for is what matters, not the one that waited. At a deadline the message tells of the latter
// first: "... missing: rank 1 (pid 7), its last ..."; otherwise of the former: "group "world": rank 1 (pid 7) left the
// group; ...".
Blame blame_in(const std::exception& error) {
  if (dynamic_cast<const CommError*>(&error) == nullptr) return {};
  const std::string_view text = error.what();
  if (const auto missing = text.find("missing:"); missing != std::string_view::npos)
    return {rank_in(text.substr(missing)), true};
  const auto left = text.find(" left the group");
  if (left == std::string_view::npos) return {};
  const auto name = text.rfind("rank ", left);
  return {name == std::string_view::npos ? std::nullopt : rank_in(text.substr(name)), false};
}

}  // namespace

std::string error_document(const std::exception& error, long long timestamp) {
  const auto blame = blame_in(error);
  const bool usage = dynamic_cast<const UsageError*>(&error) != nullptr;
  ErrorDocument document{error_kind(error), error.what(), timestamp, blame.rank, !usage};
  // The launcher shows the beginning of a message.
  if (blame.rank && blame.missing)
    document.text = fmt::format("rank {} is missing: {}", *document.blames_rank, error.what());
  return to_json(document);
}

bool write_error_file(const std::string& path, const std::exception& error) noexcept {
  try {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
    return write_file_whole(path, error_document(error, seconds)).empty();
  } catch (...) {
    return false;
  }
}

Reported report_to_launcher(const std::exception& error) noexcept {
  static bool reported = false;
  if (std::exchange(reported, true)) return Reported::before;
  const auto path = env::get(environment::kErrorFile);
  if (!path || path->empty()) return Reported::no_file;
  if (write_error_file(*path, error)) return Reported::written;
  std::fprintf(stderr, "dtrun-worker: the error file %s cannot be written\n", path->c_str());
  return Reported::no_file;
}

}  // namespace dtrun::runtime
