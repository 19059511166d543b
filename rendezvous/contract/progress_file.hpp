// How far a worker is, for the launcher: one line in the file that DTRUN_PROGRESS_FILE names, "<finished steps>\n" in
// decimal, spaces before it allowed. The worker replaces the line in one write, so that a reader sees an old number or
// a new one: pwrite() at offset 0 of a width that does not change, or a rename. The count goes on after a restart when
// the worker does (from a checkpoint), and starts at 0 again when it does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun {

// Its name in the rank's log directory, and more than its size.
inline constexpr std::string_view kProgressFileName = "progress";
inline constexpr std::int64_t kProgressFileMost = 64;

// Owner: the worker; one thread. Costs one system call per step. Without a file, or when it cannot be opened or
// written, it does nothing: training does not depend on it.
class ProgressWriter {
 public:
  explicit ProgressWriter(const std::optional<std::string>& path);
  void finished_steps(std::int64_t count) noexcept;

 private:
  UniqueFd file_;
};

// Nothing when there is no file, or no number in it.
std::optional<std::int64_t> read_progress(const std::string& path);

}  // namespace dtrun
