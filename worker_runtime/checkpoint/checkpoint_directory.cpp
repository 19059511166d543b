#include "worker_runtime/checkpoint/checkpoint_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <tuple>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"

namespace dtrun::runtime {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kStep = "step_", kSaving = ".saving_", kReplaced = ".replaced_", kDeleting = ".deleting_";

// The step that follows the prefix; nothing when the name is another one. Of ".replaced_" a word may follow.
std::optional<std::int64_t> step_in(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const auto digits = name.substr(prefix.size());
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc{} || step < 0) return std::nullopt;
  if (prefix == kStep && name != checkpoint_name(step)) return std::nullopt;
  return step;
}

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> paths;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) paths.push_back(entry->path());
  if (error && error != std::errc::no_such_file_or_directory)
    throw_errno("checkpoint", fmt::format("read the directory \"{}\"", directory.string()), error.value());
  return paths;
}

FoundCheckpoint look_at(const fs::path& path, std::int64_t step) {
  FoundCheckpoint found{.path = path, .step = step, .meta = {}, .fault = {}};
  try {
    found.meta = read_meta(path);
    if (found.meta->meta.step != step) {
      found.fault = fmt::format("meta.json: it is of step {}", found.meta->meta.step);
      found.meta.reset();
    }
  } catch (const std::exception& error) {
    found.fault = reason_of(error);
  }
  return found;
}

// Without reading them.
bool files_are_there(const FoundCheckpoint& found) {
  std::error_code ignored;
  if (!found.meta || !fs::exists(found.path / "index.json", ignored)) return false;
  for (int rank = 0; rank < found.meta->world; ++rank)
    if (!fs::exists(found.path / rank_file_name(rank), ignored)) return false;
  return true;
}

std::string remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? fmt::format("remove \"{}\": {}", path.string(), error.message()) : std::string();
}

// A crash in the middle leaves nothing that looks like a checkpoint.
std::string remove_checkpoint(const fs::path& path) {
  const auto going = path.parent_path() / (std::string(kDeleting) + path.filename().string());
  if (auto fault = remove_tree(going); !fault.empty()) return fault;
  std::error_code error;
  fs::rename(path, going, error);
  return error ? fmt::format("rename \"{}\": {}", path.string(), error.message()) : remove_tree(going);
}

[[noreturn]] void fail_to_rename(const fs::path& from, const fs::path& to) {
  throw_errno("checkpoint", fmt::format("rename \"{}\" to \"{}\"", from.string(), to.filename().string()));
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:08}", kStep, step); }
std::string saving_name(std::int64_t step, const std::string& save) {
  return fmt::format("{}{:08}_{}", kSaving, step, save);
}

std::vector<FoundCheckpoint> list_checkpoints(const fs::path& directory) {
  std::vector<FoundCheckpoint> good, bad;
  for (const auto& path : entries_of(directory)) {
    const auto name = path.filename().string();
    auto step = step_in(name, kStep);
    std::error_code ignored;
    if (!step && (step = step_in(name, kReplaced)) && fs::exists(directory / checkpoint_name(*step), ignored)) continue;
    if (!step || !fs::is_directory(path, ignored)) continue;
    auto found = look_at(path, *step);
    (found.meta ? good : bad).push_back(std::move(found));
  }
  std::ranges::sort(good, std::greater(),
                    [](const auto& found) { return std::tuple(found.meta->sequence, found.step, found.name()); });
  std::ranges::sort(bad, std::less(), [](const auto& found) { return std::pair(found.step, found.name()); });
  for (auto& found : bad) {
    const auto behind = std::ranges::find_if(good, [&](const auto& other) { return other.step <= found.step; });
    good.insert(behind, std::move(found));
  }
  return good;
}

std::optional<fs::path> put_in_place(const fs::path& from, const fs::path& to, Exchange exchange) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return std::nullopt;
  if (errno != ENOTEMPTY && errno != EEXIST) fail_to_rename(from, to);
  if (exchange == Exchange::yes) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return from;
    if (errno != EINVAL && errno != ENOSYS) fail_to_rename(from, to);
  }
  const auto name = from.filename().string();
  const auto old = to.parent_path() / (std::string(kReplaced) + name.substr(std::min(name.size(), kSaving.size())));
  if (std::rename(to.c_str(), old.c_str()) != 0) fail_to_rename(to, old);
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    const int cause = errno;
    static_cast<void>(std::rename(old.c_str(), to.c_str()));
    errno = cause;
    fail_to_rename(from, to);
  }
  return old;
}

std::string remove_old_checkpoints(const fs::path& directory, int keep) {
  if (keep <= 0) return {};
  std::string fault;
  const auto note = [&](std::string text) {
    if (fault.empty()) fault = std::move(text);
  };
  try {
    int kept = 0;
    for (const auto& found : list_checkpoints(directory)) {
      if (kept < keep) {
        kept += files_are_there(found) ? 1 : 0;
        continue;
      }
      std::error_code ignored;  // a directory of that name with nothing of ours in it is not ours
      if (fs::exists(found.path / "meta.json", ignored) || fs::exists(found.path / "index.json", ignored))
        note(remove_checkpoint(found.path));
    }
  } catch (const std::exception& error) {
    note(reason_of(error));
  }
  return fault;
}

std::string remove_leftovers(const fs::path& directory, const std::string& current) {
  std::string fault;
  const auto note = [&](std::string text) {
    if (fault.empty()) fault = std::move(text);
  };
  try {
    for (const auto& path : entries_of(directory)) {
      const auto name = path.filename().string();
      std::error_code error;
      if (name == current) continue;
      if (name.starts_with(kSaving) || name.starts_with(kDeleting)) note(remove_tree(path));
      const auto step = step_in(name, kReplaced);
      if (!step) continue;
      const auto place = directory / checkpoint_name(*step);
      if (fs::exists(place / "meta.json", error)) {
        note(remove_tree(path));
      } else {
        fs::rename(path, place, error);  // a crash between two renames: back to its name
        if (error) note(fmt::format("rename \"{}\": {}", path.string(), error.message()));
      }
    }
  } catch (const std::exception& error) {
    note(reason_of(error));
  }
  return fault;
}

}  // namespace dtrun::runtime
