// From the program's name on the command line to the command line of a worker.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/config/launch_config.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {

// The program cannot be run at all: 127 missing, 126 not executable. Never retried.
class ProgramError : public Error {
 public:
  ProgramError(std::string_view text, int exit_code) : Error("launcher", text), exit_code_(exit_code) {}
  int exit_code() const noexcept { return exit_code_; }

 private:
  int exit_code_;
};

enum class FileKind {
  missing,
  directory,
  executable,
  script,   // a file without x bit that Python may read
  foreign,  // a file without x bit that is a binary, or whose #! line names something else than Python
};

// How resolve_program sees the machine; tests give it a made-up one.
struct ProgramSurroundings {
  std::function<std::optional<std::string>(const char* name)> environment;
  std::function<FileKind(const std::string& path)> look_at;
  std::string own_directory;  // of the dtrun executable
};

ProgramSurroundings real_surroundings();

// argv in front of the program's own arguments. Throws ProgramError.
//   worker          dtrun-worker beside dtrun, in ../libexec, or in PATH
//   x.py            python -u x.py; so for any file that is neither executable nor foreign, and for directories
//   an executable   itself; a bare name is looked for here first, then in PATH
//   -m              python -u -m module;  --no-python: as it is, looked up in PATH;  --run-path: through runpy
std::vector<std::string> resolve_program(const LaunchConfig& config, const ProgramSurroundings& surroundings);

// What starting `program` would find: nothing when it can be executed. Throws ProgramError. A run learns it from exec.
void expect_executable(const std::string& program, const ProgramSurroundings& surroundings);

// PYTHON_EXEC, $VIRTUAL_ENV/bin/python, $CONDA_PREFIX/bin/python, then python3 and python in PATH. Throws ProgramError.
std::string find_python(const ProgramSurroundings& surroundings);

// Python's string.Template with one name: $local_rank and ${local_rank}; $$ is $; everything else stays.
std::string substitute_local_rank(std::string_view argument, int local_rank);
// The same for torchrun's log prefix: $name and ${name} of `values`.
std::string substitute(std::string_view text, const std::vector<std::pair<std::string_view, std::string>>& values);

}  // namespace dtrun::launcher
