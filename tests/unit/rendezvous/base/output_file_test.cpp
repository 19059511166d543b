#include "rendezvous/base/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"

using namespace dtrun;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

void write_whole(const std::string& path, std::string_view text) {
  OutputFile file("test", path, OutputFile::Durable::yes);
  file.write(text);
  file.commit();
}

}  // namespace

TEST_CASE("a whole file is there after commit, and nothing without it") {
  const tests::TempDirectory dir;
  write_whole(dir.file("a"), "one");
  CHECK(tests::read_file(dir.file("a")) == "one");
  REQUIRE(::chmod(dir.file("a").c_str(), 0640) == 0);
  {
    OutputFile file("test", dir.file("a"));
    file.write(std::string_view("half"));
    CHECK(tests::read_file(dir.file("a")) == "one");
  }
  CHECK(dir.entries() == 1);
  write_whole(dir.file("a"), "two");
  CHECK(tests::read_file(dir.file("a")) == "two");
  CHECK((fs::status(dir.file("a")).permissions() & fs::perms::all) == fs::perms(0640));
  write_whole(dir.file(std::string(255, 'n')), "long name");
  CHECK(dir.entries() == 2);
}

TEST_CASE("a symbolic link stays one, its target is written") {
  const tests::TempDirectory dir;
  fs::create_directory(dir.file("d"));
  fs::create_symlink("d/target", dir.file("link"));  // of nothing yet
  for (const auto* text : {"one", "two"}) {
    check_writable("test", dir.file("link"));
    write_whole(dir.file("link"), text);
    CHECK(fs::is_symlink(dir.file("link")));
    CHECK(tests::read_file(dir.file("d/target")) == text);
  }
  fs::create_symlink("loop", dir.file("loop"));
  CHECK_THROWS_AS(write_whole(dir.file("loop"), "x"), SystemError);
}

TEST_CASE("a FIFO is written, not replaced, and its reader gets a second to come") {
  const tests::TempDirectory dir;
  const auto path = dir.file("fifo");
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  check_writable("test", path);
  CHECK_THROWS_WITH(write_whole(path, "x"), Contains("nobody reads it") && Contains(path));
  const UniqueFd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  write_whole(path, "through");
  char text[16];
  CHECK(::read(reader.value(), text, sizeof text) == 7);
  CHECK(fs::is_fifo(path));
  CHECK(dir.entries() == 1);
}

TEST_CASE("a device is written, not replaced") {
  const tests::TempDirectory dir;
  // A copy of /dev/full, so that a failure of this test harms nothing; only root may make one.
  const auto path = dir.file("full");
  const bool own = ::mknod(path.c_str(), S_IFCHR | 0666, ::makedev(1, 7)) == 0 && ::access(path.c_str(), W_OK) == 0;
  UniqueFd probe;
  if (own) probe.reset(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!probe) {
    WARN("no device can be made here");
    return;
  }
  CHECK_THROWS_WITH(write_whole(path, "x"), Contains("No space left"));
  CHECK(fs::is_character_file(path));
  fs::create_symlink("full", dir.file("link"));
  CHECK_THROWS_AS(write_whole(dir.file("link"), "x"), SystemError);
  CHECK(fs::is_character_file(path));
}

TEST_CASE("a link to an open file is written through it, not replaced") {
  const tests::TempDirectory dir;
  const UniqueFd fd(::open(dir.file("out").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  REQUIRE(::write(fd.value(), "a", 1) == 1);
  fs::create_symlink("/proc/self/fd/" + std::to_string(fd.value()), dir.file("link"));
  write_whole(dir.file("link"), "b");
  REQUIRE(::write(fd.value(), "c", 1) == 1);
  CHECK(tests::read_file(dir.file("out")) == "abc");
  CHECK(regular_target(dir.file("link")).empty());
  CHECK(regular_target(dir.file("new")) == dir.file("new"));
}

TEST_CASE("what cannot be written is known before") {
  const tests::TempDirectory dir;
  fs::create_directory(dir.file("d"));
  CHECK_THROWS_WITH(check_writable("test", dir.file("d")), Contains("directory") && Contains(dir.file("d")));
  CHECK_THROWS_WITH(check_writable("test", dir.file("no/such")), Contains("No such file") && Contains("no/such"));
  CHECK_THROWS_AS(check_writable("test", dir.file(std::string(300, 'n'))), SystemError);
  check_writable("test", dir.file("new"));
  CHECK(dir.entries() == 1);
}
