// How far a worker is, for the launcher: the file that DTRUN_PROGRESS_FILE names. Its first line is "<finished
// steps>\n" in decimal, spaces before it allowed. The worker replaces it in one write, so that a reader sees an old
// number or a new one: pwrite() at offset 0 of a width that does not change, or a rename. The count goes on after a
// restart when the worker does (from a checkpoint), and starts at 0 again when it does. A second line may follow:
// "began <step> set-up <ns> loaded <ns> first-step <ns>\n", when this process passed its phases, in CLOCK_MONOTONIC, 0
// or less for one that it has not passed, and with how many finished steps it began. The first line is blank until a
// number is known. Readers of the first line need not know of the second, and writers need not write it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun {

// Its name in the rank's log directory, and more than its size.
inline constexpr std::string_view kProgressFileName = "progress";
inline constexpr std::int64_t kProgressFileMost = 192;

// Owner: the worker; one thread. Costs one system call per step. Without a file, or when it cannot be opened or
// written, it does nothing: training does not depend on it.
class ProgressWriter {
 public:
  explicit ProgressWriter(const std::optional<std::string>& path);
  // Each phase once: the ranks have met; the state is there, `step` steps of it finished.
  void set_up() noexcept;
  void loaded(std::int64_t step) noexcept;
  void finished_steps(std::int64_t count) noexcept;

 private:
  void write() noexcept;

  UniqueFd file_;
  std::int64_t count_ = -1, began_ = -1, set_up_ = 0, loaded_ = 0, first_step_ = 0;
};

// All that a worker told.
struct Progress {
  bool told = false;        // there is a file with something in it
  std::int64_t steps = -1;  // finished ones; -1: not known
  std::optional<std::int64_t> began_at;
  std::optional<Clock::time_point> set_up, loaded, first_step;
};

Progress read_whole_progress(const std::string& path);
// Nothing when there is no file, or no number in it.
std::optional<std::int64_t> read_progress(const std::string& path);

}  // namespace dtrun
