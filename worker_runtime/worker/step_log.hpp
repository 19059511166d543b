// steps.jsonl: one JSON object per line and step, of one rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "worker_runtime/core/memory_account.hpp"
#include "worker_runtime/parallel/executor.hpp"
#include "worker_runtime/worker/environment.hpp"

namespace dtrun::runtime {

struct StepRecord {
  std::int64_t step = 0;         // from 0; where people read it, steps are counted from 1
  std::uint64_t batch_hash = 0;  // xxh64 of the numbers of this rank's samples
  StepResult result;
  double lr = 0;
  double tokens_per_second = 0;  // of all ranks
  Clock::duration data{}, total{};
  std::string last_collective;
  std::string not_finite{};                        // of a skipped step: what was not finite, and where
  std::optional<std::int64_t> back_to_step;        // and the steps whose state came back
  TagBytes peak_bytes{};                           // counted in this step
  std::optional<TagBytes> predicted_peak_bytes{};  // by a dry run, when there was one
};
// {"param": 128, ...}
nlohmann::ordered_json to_json(const TagBytes& bytes);

// The directory for this rank's files: `chosen`/<rank> (--log-dir), else <DTRUN_LOG_DIR>/<rank>, else where the
// launcher wants the error file, else a fresh temporary one. Made when missing. Throws SystemError naming it.
std::filesystem::path make_log_directory(const WorkerEnvironment& environment, const std::string& chosen);

// One per rank and attempt, used by one thread; goes on behind what the file has. A line is one write, so a killed rank
// leaves whole lines. The constructor throws SystemError; a line that cannot be written later (a full disk) is counted
// and warned of once: the run matters more than its log.
class StepLog {
 public:
  explicit StepLog(const std::filesystem::path& directory);
  const std::filesystem::path& path() const noexcept { return path_; }
  // What an earlier attempt or run left there goes: this one does not go on from it.
  void start_anew();
  // `device`: as device_word() has it.
  void write(const StepRecord& record, std::string_view device = "cpu");
  std::int64_t lost_lines() const noexcept { return lost_; }

 private:
  bool append(std::string_view text);

  std::filesystem::path path_;
  UniqueFd file_;
  std::int64_t lost_ = 0;
};

}  // namespace dtrun::runtime
