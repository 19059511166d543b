// Ports (C11): jobs side by side, a job again and again on one port, and a port that somebody else holds.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <set>

#include "rendezvous/base/unique_fd.hpp"
#include "tests/catch.hpp"
#include "tests/scenario/dtrun_job.hpp"
#include "tests/support/full_size.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using namespace std::chrono_literals;
using launcher::ExitStatus;

namespace {

constexpr std::uint16_t kStaticPort = 29500;  // torchrun's

// Listens on 127.0.0.1:port, 0: any. Nothing when the port is taken.
UniqueFd occupy(std::uint16_t& port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(fd.value(), reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd.value(), 1) != 0) return {};
  ::getsockname(fd.value(), reinterpret_cast<sockaddr*>(&address), &size);
  port = ntohs(address.sin_port);
  return fd;
}

}  // namespace

TEST_CASE("eight jobs at once have eight stores, whoever holds 29500") {
  std::uint16_t static_port = kStaticPort;
  const auto holder = occupy(static_port);  // or somebody else has it: as good
  for (int round = 0; round < full_size(50, 5); ++round) {
    std::vector<std::unique_ptr<Job>> jobs;
    for (int i = 0; i < 8; ++i) {
      jobs.push_back(std::make_unique<Job>(
          dtrun_argv({"--nproc-per-node=2", "--log-prefix="}, {"env=MASTER_PORT", "env=WORLD_SIZE", "sleep=0.1"})));
    }
    std::set<std::string> ports;
    for (auto& job : jobs) {
      CHECK(job->wait() == ExitStatus{});
      CAPTURE(job->out(), job->error());
      std::set<std::string> mine;
      for (const auto& line : lines_of(job->out())) {
        if (line.starts_with("MASTER_PORT=")) mine.insert(line);
        CHECK((line.starts_with("MASTER_PORT=") || line == "WORLD_SIZE=2"));
      }
      REQUIRE(mine.size() == 1);
      ports.insert(*mine.begin());
    }
    CHECK(ports.size() == 8);
    CHECK(!ports.contains("MASTER_PORT=29500"));
  }
}

TEST_CASE("a job starts a hundred times in a row on a fixed port, with a client connected when it ends") {
  std::uint16_t port = 0;
  occupy(port);  // and free again
  const auto option = "--master-port=" + std::to_string(port);
  const std::string client = "exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT && echo connected";
  for (int i = 0; i < 100; ++i) {
    Job job({kDtrun, "--nproc-per-node=1", option, "--no-python", "/bin/bash", "-c", client});
    REQUIRE(job.wait() == ExitStatus{});
    CHECK_THAT(job.out(), Catch::Contains("connected"));
    CHECK(job.error().empty());
  }
}

TEST_CASE("restarts of one job use its fixed port again and again") {
  std::uint16_t port = 0;
  occupy(port);
  Job job({kDtrun, "--nproc-per-node=1", "--master-port=" + std::to_string(port), "--max-restarts=100", "--no-python",
           "/bin/bash", "-c", "exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT && [ $TORCHELASTIC_RESTART_COUNT = 100 ]"});
  CHECK(job.wait(60s) == ExitStatus{});
}

TEST_CASE("the error for a fixed port that is taken names who holds it") {
  std::uint16_t port = 0;
  const auto holder = occupy(port);
  REQUIRE(holder);
  Job job({kDtrun, "--nproc-per-node=2", "--master-port=" + std::to_string(port), "--no-python", "/bin/true"});
  CHECK(job.wait(10s) == ExitStatus{.code = 75});
  CHECK_THAT(job.error(), Catch::Contains(std::to_string(port) + " is held by pid " + std::to_string(::getpid())) &&
                              Catch::Contains("test_scenario"));
  CHECK(lines_of(job.error()).size() <= 3);
}
