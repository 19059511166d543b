#include "tests/catch.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/base/whole_file.hpp"
#include "tests/support/files.hpp"

namespace fs = std::filesystem;
using namespace dtrun;

TEST_CASE("a result file is replaced whole and keeps its mode", "[whole_file]") {
  const tests::TempDirectory dir;
  CHECK(write_file_whole(dir.file("a"), "one").empty());
  ::chmod(dir.file("a").c_str(), 0640);
  CHECK(write_file_whole(dir.file("a"), std::string("t\0o", 3)).empty());
  CHECK(tests::read_file(dir.file("a")) == std::string("t\0o", 3));
  CHECK((fs::status(dir.file("a")).permissions() & fs::perms::mask) == fs::perms(0640));
  CHECK(dir.entries() == 1);
  CHECK(prepare_file_whole(dir.file("a")).empty());
  CHECK(dir.entries() == 0);
}

TEST_CASE("links of result files are followed, also to a file that is not there yet", "[whole_file]") {
  const tests::TempDirectory dir;
  fs::create_directory(dir.file("sub"));
  fs::create_symlink("sub/target", dir.file("link"));
  for (const char* text : {"first", "second"}) {
    CHECK(prepare_file_whole(dir.file("link")).empty());
    CHECK(write_file_whole(dir.file("link"), text).empty());
    CHECK(fs::is_symlink(dir.file("link")));
    CHECK(tests::read_file(dir.file("sub/target")) == text);
  }
  fs::create_symlink("circle", dir.file("circle"));
  CHECK(write_file_whole(dir.file("circle"), "x").find("cannot be written") != std::string::npos);
}

TEST_CASE("a named pipe and a device are written into and never removed", "[whole_file]") {
  const tests::TempDirectory dir;
  REQUIRE(::mkfifo(dir.file("pipe").c_str(), 0600) == 0);
  CHECK(prepare_file_whole(dir.file("pipe")).empty());
  CHECK_FALSE(write_file_whole(dir.file("pipe"), "nobody reads").empty());
  const std::string text(300'000, 'x');  // more than a pipe holds
  const pid_t child = ::fork();
  if (child == 0) ::_exit(write_file_whole(dir.file("pipe"), text).empty() ? 0 : 1);
  CHECK(tests::read_file(dir.file("pipe")) == text);
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(fs::is_fifo(dir.file("pipe")));
  fs::create_symlink("/dev/null", dir.file("null"));
  CHECK(prepare_file_whole(dir.file("null")).empty());
  CHECK(write_file_whole(dir.file("null"), "x").empty());
  CHECK(fs::is_symlink(dir.file("null")));
  CHECK(fs::is_character_file("/dev/null"));
  CHECK(dir.entries() == 2);
}

TEST_CASE("an open file behind /proc is appended to", "[whole_file]") {
  const tests::TempDirectory dir;
  const UniqueFd fd(::open(dir.file("out").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  REQUIRE(::write(fd.value(), "a", 1) == 1);
  const auto path = "/proc/self/fd/" + std::to_string(fd.value());
  CHECK(prepare_file_whole(path).empty());
  CHECK(write_file_whole(path, "b").empty());
  CHECK(tests::read_file(dir.file("out")) == "ab");
}

TEST_CASE("a path that cannot be written is found before the run", "[whole_file]") {
  const tests::TempDirectory dir;
  CHECK(prepare_file_whole(dir.file("missing/report")).find("No such file") != std::string::npos);
  CHECK(prepare_file_whole(dir.path()).find("Is a directory") != std::string::npos);
  CHECK_FALSE(prepare_file_whole("/proc/report").empty());
  CHECK_FALSE(prepare_file_whole("").empty());
  std::ofstream(dir.file("file")) << "x";
  CHECK(write_file_whole(dir.file("file/below"), "x").find("Not a directory") != std::string::npos);
  if (std::ifstream("/dev/full").good()) {
    CHECK(write_file_whole("/dev/full", "x").find("No space") != std::string::npos);
  }
}
