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

namespace fs = std::filesystem;
using namespace dtrun;

namespace {

struct Directory {
  Directory() {
    char name[] = "/tmp/dtrun_whole_XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Directory() { fs::remove_all(path); }
  std::string at(const std::string& name) const { return path + "/" + name; }
  std::string path;
};

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::size_t entries(const std::string& path) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), {}));
}

}  // namespace

TEST_CASE("a result file is replaced whole and keeps its mode", "[whole_file]") {
  const Directory dir;
  CHECK(write_file_whole(dir.at("a"), "one").empty());
  ::chmod(dir.at("a").c_str(), 0640);
  CHECK(write_file_whole(dir.at("a"), std::string("t\0o", 3)).empty());
  CHECK(text_of(dir.at("a")) == std::string("t\0o", 3));
  CHECK((fs::status(dir.at("a")).permissions() & fs::perms::mask) == fs::perms(0640));
  CHECK(entries(dir.path) == 1);
  CHECK(prepare_file_whole(dir.at("a")).empty());
  CHECK(entries(dir.path) == 0);
}

TEST_CASE("links of result files are followed, also to a file that is not there yet", "[whole_file]") {
  const Directory dir;
  fs::create_directory(dir.at("sub"));
  fs::create_symlink("sub/target", dir.at("link"));
  for (const char* text : {"first", "second"}) {
    CHECK(prepare_file_whole(dir.at("link")).empty());
    CHECK(write_file_whole(dir.at("link"), text).empty());
    CHECK(fs::is_symlink(dir.at("link")));
    CHECK(text_of(dir.at("sub/target")) == text);
  }
  fs::create_symlink("circle", dir.at("circle"));
  CHECK(write_file_whole(dir.at("circle"), "x").find("cannot be written") != std::string::npos);
}

TEST_CASE("a named pipe and a device are written into and never removed", "[whole_file]") {
  const Directory dir;
  REQUIRE(::mkfifo(dir.at("pipe").c_str(), 0600) == 0);
  CHECK(prepare_file_whole(dir.at("pipe")).empty());
  CHECK_FALSE(write_file_whole(dir.at("pipe"), "nobody reads").empty());
  const std::string text(300'000, 'x');  // more than a pipe holds
  const pid_t child = ::fork();
  if (child == 0) ::_exit(write_file_whole(dir.at("pipe"), text).empty() ? 0 : 1);
  CHECK(text_of(dir.at("pipe")) == text);
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(fs::is_fifo(dir.at("pipe")));
  fs::create_symlink("/dev/null", dir.at("null"));
  CHECK(prepare_file_whole(dir.at("null")).empty());
  CHECK(write_file_whole(dir.at("null"), "x").empty());
  CHECK(fs::is_symlink(dir.at("null")));
  CHECK(fs::is_character_file("/dev/null"));
  CHECK(entries(dir.path) == 2);
}

TEST_CASE("an open file behind /proc is appended to", "[whole_file]") {
  const Directory dir;
  const UniqueFd fd(::open(dir.at("out").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  REQUIRE(::write(fd.value(), "a", 1) == 1);
  const auto path = "/proc/self/fd/" + std::to_string(fd.value());
  CHECK(prepare_file_whole(path).empty());
  CHECK(write_file_whole(path, "b").empty());
  CHECK(text_of(dir.at("out")) == "ab");
}

TEST_CASE("a path that cannot be written is found before the run", "[whole_file]") {
  const Directory dir;
  CHECK(prepare_file_whole(dir.at("missing/report")).find("No such file") != std::string::npos);
  CHECK(prepare_file_whole(dir.path).find("Is a directory") != std::string::npos);
  CHECK_FALSE(prepare_file_whole("/proc/report").empty());
  CHECK_FALSE(prepare_file_whole("").empty());
  std::ofstream(dir.at("file")) << "x";
  CHECK(write_file_whole(dir.at("file/below"), "x").find("Not a directory") != std::string::npos);
  if (std::ifstream("/dev/full").good()) {
    CHECK(write_file_whole("/dev/full", "x").find("No space") != std::string::npos);
  }
}
