#include "launcher/process/job_mark.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include "tests/catch.hpp"

using dtrun::launcher::JobMark;

TEST_CASE("a job's mark is read as it was written, and nothing else is read") {
  const JobMark mark{4711, 18446744073709551615ULL};
  CHECK(mark.to_string() == "4711.18446744073709551615");
  CHECK(JobMark::parse(mark.to_string()) == mark);
  for (const auto* text : {"", ".", "1", "1.", ".1", "-1.5", "0.5", "1.5x", "1.-5", " 1.5", "1.5 ", "99999999999.1",
                           "1.99999999999999999999"})
    CHECK(!JobMark::parse(text));
}

TEST_CASE("a mark is alive as long as its guardian, not the next process with that number") {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const auto mark = JobMark::of_guardian(child);
  REQUIRE(mark);
  CHECK(mark->alive());
  CHECK(JobMark::parse(mark->to_string()) == mark);
  CHECK_FALSE(JobMark{child, mark->start + 1}.alive());
  ::kill(child, SIGKILL);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK_FALSE(mark->alive());  // a zombie guards nothing
  ::waitpid(child, nullptr, 0);
  CHECK_FALSE(mark->alive());
  CHECK_FALSE(JobMark::of_guardian(1 << 30));
}
