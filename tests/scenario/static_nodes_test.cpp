// The static backend with two launchers on this machine: exit codes and last lines of jobs that do not end well.
#include <fmt/format.h>
#include <signal.h>

#include <thread>

#include "rendezvous/base/listener.hpp"
#include "tests/catch.hpp"
#include "tests/scenario/job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using namespace std::chrono_literals;

namespace {

std::vector<std::string> node(int rank, std::uint16_t port, const std::string& shell, const std::string& more = "") {
  std::vector<std::string> argv = {DTRUN_PROGRAM,
                                   "--nnodes=2",
                                   fmt::format("--node-rank={}", rank),
                                   "--master-addr=127.0.0.1",
                                   fmt::format("--master-port={}", port),
                                   "--no-python"};
  if (!more.empty()) argv.push_back(more);
  for (const auto* word : {"/bin/sh", "-c"}) argv.emplace_back(word);
  argv.push_back(shell);
  return argv;
}

std::uint16_t free_port() { return listen_on("127.0.0.1", 0, "test").port; }

int code(Job& job) {
  const auto status = job.wait();
  return status ? status->shell_code() : -1;
}

}  // namespace

TEST_CASE("static: a node whose workers ended well has the code of the node that failed") {
  const auto port = free_port();
  Job host(node(0, port, "exit 0"));
  Job guest(node(1, port, "sleep 0.5; exit 3"));
  CHECK(code(guest) == 3);
  CHECK(code(host) == 3);
  CHECK(host.running_time() < 5s);
  CHECK(host.error().find("dtrun: error: node 1 had ended with exit code 3\n") != std::string::npos);
  CHECK(guest.error().find("root cause: rank 1 on ") != std::string::npos);
}

TEST_CASE("static: when node 0 fails the others do not end well") {
  const auto port = free_port();
  Job host(node(0, port, "exit 4"));
  Job guest(node(1, port, "sleep 0.5"));
  CHECK(code(host) == 4);
  CHECK(code(guest) == 75);
  CHECK(guest.error().find(fmt::format("dtrun: error: node 0, at 127.0.0.1:{}, was gone", port)) != std::string::npos);
}

TEST_CASE("static: workers do not start again without node 0") {
  const auto port = free_port();
  const TempDirectory directory;
  const auto up = directory.file("up"), gone = directory.file("gone");
  const auto wait_for = [](const std::string& path) {
    return fmt::format("until [ -e {} ]; do sleep 0.01; done; ", path);
  };
  Job host(node(0, port, wait_for(up) + "exit 4"));
  Job guest(node(1, port, fmt::format("echo up; : > {}; ", up) + wait_for(gone) + "exit 3", "--max-restarts=3"));
  CHECK(code(host) == 4);
  directory.write("gone", "");
  CHECK(code(guest) == 75);
  CHECK(guest.out() == "up\n");
  CHECK(guest.error().find(
            fmt::format("dtrun: error: node 0, at 127.0.0.1:{}, was gone before every node had ended well: ", port)) !=
        std::string::npos);
}

TEST_CASE("static: a signal ends every wait for the other node at once") {
  const auto port = free_port();
  SECTION("for node 0") {
    Job guest(node(1, port, "exit 0"));
    std::this_thread::sleep_for(300ms);
    guest.signal(SIGTERM);
    CHECK(code(guest) == 143);
    CHECK(guest.running_time() < 3s);
  }
  SECTION("for the end of its workers") {
    Job host(node(0, port, "exit 0"));
    Job guest(node(1, port, "echo up; exec sleep 60"));
    REQUIRE(eventually([&] { return guest.out().find("up") != std::string::npos; }));
    host.signal(SIGTERM);
    CHECK(code(host) == 143);
    CHECK(host.running_time() < 5s);
    guest.signal(SIGTERM);
    CHECK(code(guest) == 143);
    CHECK(guest.all_gone(2s));
  }
}

TEST_CASE("static: who is missing is said while there is time, and at its end") {
  const auto port = free_port();
  Job host(node(0, port, "echo never", "--rdzv-conf=timeout=6"));
  CHECK(code(host) == 75);
  CHECK(host.running_time() < 8s);
  CHECK(host.out().empty());
  CHECK(host.error().find(fmt::format("dtrun: waiting for nodes: 1 of 2 are here (static, 127.0.0.1:{}), 5 s of 6 s\n",
                                      port)) != std::string::npos);
  CHECK(host.error().find(fmt::format(
            "dtrun: error: [rendezvous] only 1 of 2 nodes came within 6 s (static, 127.0.0.1:{})\n", port)) !=
        std::string::npos);
}

TEST_CASE("static: a token that protects nothing is told, and so is a setting that does not exist") {
  const auto warned = [](const std::string& option) {
    auto argv = node(0, free_port(), "exit 0", option);
    argv.insert(argv.begin() + 1, "--explain");
    Job job(argv);
    CHECK(code(job) == 0);
    return job.error();
  };
  CHECK(warned("--rdzv-token-file=secret").find("protects nothing with the static backend") != std::string::npos);
  CHECK(warned("--rdzv-conf=tiemout=5").find("there is no setting \"tiemout\"") != std::string::npos);
  CHECK(warned("--rdzv-conf=timeout=5").find("there is no setting") == std::string::npos);
}
