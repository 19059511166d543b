#include "rendezvous/coordinator/job_token.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/job_id.hpp"
#include "tests/catch.hpp"
#include "tests/support/private_file.hpp"

using namespace dtrun;
using namespace dtrun::rendezvous;
using Catch::Contains;
using tests::PrivateFile;

namespace {

std::string refusal(const std::string& path) {
  try {
    JobToken::read(path);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal_of(const std::string& content, mode_t mode = 0600) {
  const PrivateFile file(content, mode);
  const auto line = refusal(file.path());
  if (line != "accepted") {
    CHECK_THAT(line, Contains(file.path()));
    CHECK((content.empty() || line.find(content) == std::string::npos));
  }
  return line;
}

const std::string kGood = "0123456789abcdef";

// The parts of this process's memory that hold the text whose inverted bytes are given; without what core dumps leave
// out. The text itself is never made here.
std::vector<std::string> places_of(const std::string& inverted) {
  std::vector<std::string> found;
  std::ifstream smaps("/proc/self/smaps");
  std::ifstream memory("/proc/self/mem", std::ios::binary);
  std::string line, header;
  std::vector<char> piece((1 << 16) + inverted.size());
  while (std::getline(smaps, line)) {
    if (line.find('-') < line.find(' ')) header = line;
    const bool readable = header.find(" r") != std::string::npos && header.find("[v") == std::string::npos;
    if (!line.starts_with("VmFlags:") || line.find(" dd") != std::string::npos || !readable) continue;
    const auto end = std::stoull(header.substr(header.find('-') + 1), nullptr, 16);
    for (auto at = std::stoull(header, nullptr, 16); at < end; at += 1 << 16) {
      memory.clear();
      memory.seekg(static_cast<std::streamoff>(at));
      memory.read(piece.data(), static_cast<std::streamsize>(std::min<std::size_t>(piece.size(), end - at)));
      const auto last = piece.begin() + memory.gcount();
      if (std::search(piece.begin(), last, inverted.begin(), inverted.end(),
                      [](char c, char wanted) { return c == static_cast<char>(~wanted); }) != last)
        found.push_back(header);
    }
  }
  return found;
}

}  // namespace

TEST_CASE("a token is the content of a private file, less one line end", "[membership]") {
  const PrivateFile plain(kGood), line(kGood + "\n"), dos(kGood + "\r\n"), two(kGood + "\n\n");
  const auto proof = JobToken::read(plain.path()).sign("text");
  CHECK(JobToken::read(line.path()).signed_by("text", proof));
  CHECK(JobToken::read(dos.path()).signed_by("text", proof));
  CHECK_FALSE(JobToken::read(two.path()).signed_by("text", proof));
  CHECK_FALSE(JobToken::read(plain.path()).signed_by("text ", proof));
  std::string most(4096, 'x');
  most += '\n';
  const PrivateFile longest(most), binary(std::string("\0\1\2\3", 4) + kGood);
  CHECK(refusal(longest.path()) == "accepted");
  CHECK(refusal(binary.path()) == "accepted");
  const PrivateFile read_only(kGood, 0400);
  CHECK(refusal(read_only.path()) == "accepted");
}

TEST_CASE("a token file that others can read, or that is none, is refused by its path", "[membership]") {
  for (const mode_t mode : {0640, 0604, 0660, 0601, 0644})
    CHECK_THAT(refusal_of(kGood, mode), Contains("open to others"));
  CHECK_THAT(refusal_of("short"), Contains("holds 5 bytes"));
  CHECK_THAT(refusal_of(""), Contains("holds 0 bytes"));
  CHECK_THAT(refusal_of(std::string(4097, 'x')), Contains("too many"));
  CHECK_THAT(refusal_of(std::string(100'000, 'x')), Contains("too many"));
  CHECK_THAT(refusal("/nowhere/token"), Contains("\"/nowhere/token\" cannot be read"));
  CHECK_THAT(refusal("/tmp"), Contains("no regular file"));
  CHECK_THAT(refusal("/dev/null"), Contains("no regular file"));
  const PrivateFile place("");
  const auto pipe = place.path() + ".pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THAT(refusal(pipe), Contains("no regular file"));  // and does not wait for a writer
  ::unlink(pipe.c_str());
  if (::geteuid() == 0) {
    const PrivateFile foreign(kGood);
    REQUIRE(::chown(foreign.path().c_str(), 12345, 12345) == 0);
    CHECK_THAT(refusal(foreign.path()), Contains("belongs to user 12345"));
  }
}

#ifndef __SANITIZE_ADDRESS__
#ifndef __SANITIZE_THREAD__
TEST_CASE("a token stands in no memory that a core dump would hold, and nowhere once it is gone", "[membership]") {
  // The bytes of the file are made and the pattern is kept inverted, so that the test itself leaves no copy.
  std::string inverted;
  for (int i = 0; i < 40; ++i) inverted.push_back(static_cast<char>(~("QZKW"[i * i % 4] + i % 7)));
  const PrivateFile file("");
  {
    const int fd = ::open(file.path().c_str(), O_WRONLY | O_CLOEXEC);
    for (const char c : inverted) {
      const char byte = static_cast<char>(~c);
      REQUIRE(::write(fd, &byte, 1) == 1);
    }
    ::close(fd);
  }
  std::optional<JobToken> token = JobToken::read(file.path());
  const auto proof = token->sign("text");
  CHECK(token->signed_by("text", proof));
  CHECK(places_of(inverted).empty());
  token.reset();
  CHECK(places_of(inverted).empty());
  // That the search finds what is there.
  const auto copy = std::make_unique<std::string>(inverted);
  for (auto& c : *copy) c = static_cast<char>(~c);
  CHECK_FALSE(places_of(inverted).empty());
}
#endif
#endif

TEST_CASE("the id of a job is plain", "[membership]") {
  for (const auto* good : {"a", "job-7", "A.b_c-9", "..."}) CHECK(is_job_id(good));
  CHECK(is_job_id(std::string(128, 'x')));
  CHECK_FALSE(is_job_id(std::string(129, 'x')));
  for (const auto* bad : {"", "a b", "a/b", "a\n", "\x1b[31m", "\xc3\xa4", "a:b", "a,b"}) CHECK_FALSE(is_job_id(bad));
}
