#include "launcher/agent/program.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/contract/exit_codes.hpp"

namespace dtrun::launcher {
namespace {

constexpr auto kWorkerBinary = "dtrun-worker";

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || (c >= '0' && c <= '9'); }

std::optional<std::string> search_path(const std::string& name, const ProgramSurroundings& surroundings) {
  std::string path = surroundings.environment("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  for (std::size_t begin = 0; begin <= path.size();) {
    const auto end = std::min(path.find(':', begin), path.size());
    const auto directory = path.substr(begin, end - begin);
    const auto candidate = directory.empty() ? name : fmt::format("{}/{}", directory, name);
    if (surroundings.look_at(candidate) == FileKind::executable) return candidate;
    begin = end + 1;
  }
  return std::nullopt;
}

std::string find_worker(const ProgramSurroundings& surroundings) {
  const auto& own = surroundings.own_directory;
  for (const auto& candidate :
       {fmt::format("{}/{}", own, kWorkerBinary), fmt::format("{}/../libexec/{}", own, kWorkerBinary)}) {
    if (surroundings.look_at(candidate) == FileKind::executable) return candidate;
  }
  if (auto found = search_path(kWorkerBinary, surroundings)) return *found;
  throw ProgramError(
      fmt::format("the bundled worker is missing: no {} in {}, {}/../libexec or PATH", kWorkerBinary, own, own),
      kExitNotFound);
}

[[noreturn]] void missing(const std::string& program, bool searched) {
  throw ProgramError(
      fmt::format("program \"{}\" does not exist{}", program, searched ? ", neither here nor in PATH" : ""),
      kExitNotFound);
}

std::vector<std::string> automatic(const std::string& program, const ProgramSurroundings& surroundings) {
  if (program == "worker") return {find_worker(surroundings)};
  const bool bare = program.find('/') == std::string::npos;
  auto kind = surroundings.look_at(program);
  if (kind == FileKind::directory) {
    const bool runnable = surroundings.look_at(program + "/__main__.py") != FileKind::missing;
    if (!runnable && !bare)
      throw ProgramError(fmt::format("program \"{}\" is a directory without __main__.py", program), kExitNotExecutable);
    kind = runnable ? FileKind::script : FileKind::missing;
  }
  if (kind != FileKind::missing && program.ends_with(".py")) kind = FileKind::script;
  switch (kind) {
    case FileKind::executable:
      return {bare ? "./" + program : program};
    case FileKind::script:
      return {find_python(surroundings), "-u", program};
    case FileKind::foreign:
      throw ProgramError(fmt::format("program \"{}\" is not executable (chmod +x it, or --no-python sh ...)", program),
                         kExitNotExecutable);
    case FileKind::directory:
    case FileKind::missing:
      break;
  }
  if (bare) {
    if (auto found = search_path(program, surroundings)) return {*found};
  }
  // Whoever names an interpreter may have one that sees other files than we do (a container, a wrapper): it decides.
  if (const auto given = surroundings.environment("PYTHON_EXEC"); given && !given->empty())
    return {*given, "-u", program};
  missing(program, bare);
}

FileKind look_at_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return FileKind::missing;
  if (S_ISDIR(status.st_mode)) return FileKind::directory;
  if (!S_ISREG(status.st_mode)) return FileKind::script;  // a pipe or device: Python may read it
  if (::access(path.c_str(), X_OK) == 0 && (status.st_mode & 0111) != 0) return FileKind::executable;
  std::array<char, 128> head{};
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto count = file ? ::read(file.value(), head.data(), head.size()) : -1;
  const std::string_view text(head.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  if (text.starts_with("\x7f"
                       "ELF"))
    return FileKind::foreign;
  const bool other_interpreter =
      text.starts_with("#!") && text.substr(0, text.find('\n')).find("python") == std::string_view::npos;
  return other_interpreter ? FileKind::foreign : FileKind::script;
}

}  // namespace

ProgramSurroundings real_surroundings() {
  std::array<char, PATH_MAX> buffer{};
  const auto size = ::readlink("/proc/self/exe", buffer.data(), buffer.size());
  std::string own(buffer.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  own.resize(std::min(own.rfind('/'), own.size()));
  return {[](const char* name) { return env::get(name); }, look_at_file, std::move(own)};
}

std::string find_python(const ProgramSurroundings& surroundings) {
  if (auto given = surroundings.environment("PYTHON_EXEC"); given && !given->empty()) return *given;
  for (const auto* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const auto root = surroundings.environment(variable);
    if (!root || root->empty()) continue;
    const auto candidate = fmt::format("{}/bin/python", *root);
    if (surroundings.look_at(candidate) == FileKind::executable) return candidate;
  }
  for (const auto* name : {"python3", "python"}) {
    if (auto found = search_path(name, surroundings)) return *found;
  }
  throw ProgramError("no Python found: set PYTHON_EXEC, activate an environment, or put python3 into PATH",
                     kExitNotFound);
}

std::vector<std::string> resolve_program(const LaunchConfig& config, const ProgramSurroundings& surroundings) {
  switch (config.mode) {
    case ProgramMode::module:
      return {find_python(surroundings), "-u", "-m", config.program};
    case ProgramMode::no_python:
      return {config.program};
    case ProgramMode::run_path:
      return {find_python(surroundings), "-u", "-c",
              "import runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')", config.program};
    case ProgramMode::automatic:
      break;
  }
  return automatic(config.program, surroundings);
}

void expect_executable(const std::string& program, const ProgramSurroundings& surroundings) {
  const bool searched = program.find('/') == std::string::npos;
  if (searched && search_path(program, surroundings)) return;
  const auto kind = searched ? FileKind::missing : surroundings.look_at(program);
  if (kind == FileKind::missing) throw ProgramError(fmt::format("program \"{}\" not found", program), kExitNotFound);
  if (kind != FileKind::executable)
    throw ProgramError(fmt::format("program \"{}\" cannot be executed", program), kExitNotExecutable);
}

std::string substitute(std::string_view text, const std::vector<std::pair<std::string_view, std::string>>& values) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] != '$') {
      result += text[i++];
      continue;
    }
    if (i + 1 < text.size() && text[i + 1] == '$') {
      result += '$';
      i += 2;
      continue;
    }
    const bool braced = i + 1 < text.size() && text[i + 1] == '{';
    const auto begin = i + (braced ? 2 : 1);
    auto end = begin;
    while (end < text.size() && (end == begin ? is_name_start(text[end]) : is_name_part(text[end]))) ++end;
    const auto name = text.substr(begin, end - begin);
    const bool closed = !braced || (end < text.size() && text[end] == '}');
    const auto found =
        std::find_if(values.begin(), values.end(), [&](const auto& value) { return value.first == name; });
    if (name.empty() || !closed || found == values.end()) {
      result += text[i++];  // not ours: stays as it is
    } else {
      result += found->second;
      i = end + (braced ? 1 : 0);
    }
  }
  return result;
}

std::string substitute_local_rank(std::string_view argument, int local_rank) {
  if (argument.find('$') == std::string_view::npos) return std::string(argument);
  return substitute(argument, {{"local_rank", std::to_string(local_rank)}});
}

}  // namespace dtrun::launcher
