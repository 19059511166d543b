#include "tests/catch.hpp"

#include <map>

#include "launcher/agent/program.hpp"

using namespace dtrun::launcher;
using Words = std::vector<std::string>;

namespace {

struct Machine {
  std::map<std::string, FileKind> files;
  std::map<std::string, std::string> variables{{"PATH", "/usr/bin:/bin"}};

  ProgramSurroundings surroundings() const {
    return {[this](const char* name) -> std::optional<std::string> {
              const auto found = variables.find(name);
              return found == variables.end() ? std::nullopt : std::optional(found->second);
            },
            [this](const std::string& path) {
              const auto found = files.find(path);
              return found == files.end() ? FileKind::missing : found->second;
            },
            "/opt/bin"};
  }
};

Machine machine() {
  return {{{"/usr/bin/python3", FileKind::executable},
           {"/bin/true", FileKind::executable},
           {"train.py", FileKind::script},
           {"exec.py", FileKind::executable},
           {"x.sh", FileKind::executable},
           {"./x.sh", FileKind::executable},
           {"plain", FileKind::script},
           {"./noexec.sh", FileKind::foreign},
           {"dir", FileKind::directory},
           {"dir/__main__.py", FileKind::script},
           {"true", FileKind::directory},
           {"/opt/bin/dtrun-worker", FileKind::executable}}};
}

Words resolve(const std::string& program, const Machine& on = machine(), ProgramMode mode = ProgramMode::automatic) {
  LaunchConfig config;
  config.program = program;
  config.mode = mode;
  return resolve_program(config, on.surroundings());
}

int refusal(const std::string& program, const Machine& on = machine()) {
  try {
    resolve(program, on);
  } catch (const ProgramError& error) {
    return error.exit_code();
  }
  return 0;
}

}  // namespace

TEST_CASE("the program's name decides how it is run") {
  CHECK(resolve("worker") == Words{"/opt/bin/dtrun-worker"});
  CHECK(resolve("train.py") == Words{"/usr/bin/python3", "-u", "train.py"});
  CHECK(resolve("exec.py") == Words{"/usr/bin/python3", "-u", "exec.py"});
  CHECK(resolve("plain") == Words{"/usr/bin/python3", "-u", "plain"});
  CHECK(resolve("dir") == Words{"/usr/bin/python3", "-u", "dir"});
  CHECK(resolve("./x.sh") == Words{"./x.sh"});
  CHECK(resolve("x.sh") == Words{"./x.sh"});
  CHECK(resolve("/bin/true") == Words{"/bin/true"});
  CHECK(resolve("true") == Words{"/bin/true"});
  CHECK(resolve("pkg.mod", machine(), ProgramMode::module) == Words{"/usr/bin/python3", "-u", "-m", "pkg.mod"});
  CHECK(resolve("train.py", machine(), ProgramMode::no_python) == Words{"train.py"});
}

TEST_CASE("programs that cannot run are told apart by their exit code") {
  CHECK(refusal("nope.py") == 127);
  CHECK(refusal("/nonexistent/x") == 127);
  CHECK(refusal("nope") == 127);
  CHECK(refusal("./noexec.sh") == 126);
  auto bare = machine();
  bare.files.erase("/opt/bin/dtrun-worker");
  CHECK(refusal("worker", bare) == 127);
  bare.files.erase("/usr/bin/python3");
  CHECK(refusal("train.py", bare) == 127);
  bare.files["/opt/bin/../libexec/dtrun-worker"] = FileKind::executable;
  CHECK(resolve("worker", bare) == Words{"/opt/bin/../libexec/dtrun-worker"});
}

TEST_CASE("Python is the one the user has activated") {
  auto on = machine();
  on.variables["CONDA_PREFIX"] = "/conda";
  on.files["/conda/bin/python"] = FileKind::executable;
  CHECK(resolve("train.py", on).front() == "/conda/bin/python");
  on.variables["VIRTUAL_ENV"] = "/venv";
  CHECK(resolve("train.py", on).front() == "/conda/bin/python");
  on.files["/venv/bin/python"] = FileKind::executable;
  CHECK(resolve("train.py", on).front() == "/venv/bin/python");
  on.variables["PYTHON_EXEC"] = "mypython";
  CHECK(resolve("train.py", on).front() == "mypython");
  CHECK(resolve("elsewhere", on) == Words{"mypython", "-u", "elsewhere"});
  CHECK(resolve("/bin/true", on) == Words{"/bin/true"});
}

TEST_CASE("local_rank is substituted like Python's string.Template does") {
  const std::vector<std::pair<std::string, std::string>> rows = {{"a$$b", "a$b"},
                                                                 {"${local_rank}X", "3X"},
                                                                 {"$local_rankX", "$local_rankX"},
                                                                 {"$local_rank", "3"},
                                                                 {"$other", "$other"},
                                                                 {"x$", "x$"},
                                                                 {"$$$$", "$$"},
                                                                 {"${LOCAL_RANK}", "${LOCAL_RANK}"},
                                                                 {"$1", "$1"},
                                                                 {"kill -9 $$", "kill -9 $"},
                                                                 {"${local_rank", "${local_rank"},
                                                                 {"$local_rank/$local_rank", "3/3"},
                                                                 {"", ""},
                                                                 {"${}", "${}"},
                                                                 {"$-${local_rank}", "$-3"}};
  for (const auto& [text, expected] : rows) {
    INFO(text);
    CHECK(substitute_local_rank(text, 3) == expected);
  }
}
