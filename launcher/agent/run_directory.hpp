// Where the files of one run lie: <base>/<run id>_<random>/attempt_<n>/<local rank>/{stdout.log,stderr.log,error.json}.
#pragma once

#include <optional>
#include <string>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::launcher {

// Without --log-dir the base is a private temporary directory. It is made before the first worker starts, because
// workers may write error files; at the end, prune() removes directories in which nothing was written, so a quiet run
// leaves nothing behind. It is locked (flock) as long as this object lives, so that others can tell it from one whose
// dtrun was killed (stale_directories.hpp). A base that the user named is never pruned. Owner: the agent. Constructor
// and make_attempt throw SystemError.
class RunDirectory {
 public:
  // /dev/null means no directory at all. `temporary_base` is used when `log_directory` is not given.
  RunDirectory(const std::optional<std::string>& log_directory, const std::string& temporary_base,
               const std::string& run_id);

  ~RunDirectory() { prune(false); }  // also when an exception ends the run
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  bool exists() const { return !run_.empty(); }
  // <base>/<run id>_<random>; empty without a directory.
  const std::string& path() const { return run_; }
  std::string attempt(int number) const;
  std::string rank(int attempt_number, int local_rank) const;
  std::string error_file(int attempt_number, int local_rank) const;
  std::string progress_file(int attempt_number, int local_rank) const;
  std::string flight_record(int attempt_number, int local_rank) const;
  // Makes the directories of one attempt.
  void make_attempt(int number, int workers);

  // Progress files and flight records go; after a success also the error files of attempts that were made good. True
  // when files are left under path().
  bool prune(bool success) noexcept;
  // The same for one attempt that another one follows: many restarts must not end in a long clean-up.
  void prune_attempt(int number) noexcept;

 private:
  std::string temporary_;  // what prune() may remove at last
  UniqueFd lock_;          // on it
  std::string run_;
};

// $TMPDIR, $TEMP, $TMP, else /tmp.
std::string temporary_base_directory();

}  // namespace dtrun::launcher
