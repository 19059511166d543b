#include "launcher/agent/stale_directories.hpp"

#include <filesystem>

#include "launcher/agent/run_directory.hpp"
#include "launcher/process/empty_tree.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"

using namespace dtrun;
using namespace dtrun::launcher;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> stale_in(const tests::TempDirectory& base, std::chrono::seconds age = 0s) {
  std::vector<std::string> result;
  for (const auto& [path, empty] : find_stale_directories(base.path().string(), age))
    result.push_back(fs::path(path).filename().string() + (empty ? " empty" : ""));
  return result;
}

}  // namespace

TEST_CASE("a run directory is stale when no dtrun holds it, and empty when nothing was written in it") {
  const tests::TempDirectory base;
  base.write("dtrun_aaaaaa/none_x/attempt_0/0/stdout.log", "");
  base.write("dtrun_bbbbbb/none_x/attempt_0/0/stdout.log", "a line\n");
  base.write("dtrun_cccccc/none_x/attempt_0/0/error.json", "");
  base.write("dtrun_longer1/x", "");  // not the form of ours
  base.write("dtrun-dddddd/x", "");
  base.write("dtrun_eeeeee", "");  // a file
  fs::create_directory_symlink(base.file("dtrun_aaaaaa"), base.file("dtrun_ffffff"));
  fs::create_directories(base.file("dtrun_gggggg/run"));
  fs::create_symlink("/etc/passwd", base.file("dtrun_gggggg/run/link"));
  {
    RunDirectory held(std::nullopt, base.path().string(), "job");
    held.make_attempt(0, 1);
    CHECK(stale_in(base) ==
          std::vector<std::string>{"dtrun_aaaaaa empty", "dtrun_bbbbbb", "dtrun_cccccc empty", "dtrun_gggggg"});
  }
  CHECK(stale_in(base).size() == 4);
  CHECK(stale_in(base, 60s).empty());
  CHECK(find_stale_directories("/no/such/directory").empty());
}

TEST_CASE("only a tree without content is removed, and then all of it") {
  const tests::TempDirectory base;
  base.write("full/a/empty", "");
  base.write("full/b/line", "x");
  base.write("empty/a/b/c", "");
  base.write("empty/a/b/progress", "                   7\n");
  base.write("big/progress", std::string(200, 'x'));
  fs::create_directories(base.file("empty/a/d"));
  fs::create_directory(base.file("linked"));
  fs::create_directory_symlink(base.file("empty"), base.file("linked/to"));
  CHECK_FALSE(remove_empty_tree(base.file("full").c_str()));
  CHECK(fs::exists(base.file("full/a/empty")));
  CHECK_FALSE(remove_empty_tree(base.file("big").c_str()));
  CHECK_FALSE(remove_empty_tree(base.file("linked").c_str()));
  CHECK_FALSE(remove_empty_tree(base.file("none").c_str()));
  CHECK_FALSE(is_empty_tree(base.file("linked/to").c_str()));
  CHECK(fs::exists(base.file("empty/a/b/c")));
  CHECK(remove_empty_tree(base.file("empty").c_str()));
  CHECK_FALSE(fs::exists(base.file("empty")));
}
