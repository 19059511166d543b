// The bundled worker on several hosts: groups of processes whose environment says so, as a launcher on each host would
// set it. Their store is this process's.
#include "tests/catch.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tests/scenario/worker_job.hpp"
#include "tests/support/store_server.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using Catch::Contains;
using nlohmann::json;
using std::chrono::seconds;

namespace {

// `hosts` groups of `per_host` ranks.
class Hosts {
 public:
  Hosts(int hosts, int per_host, const Words& arguments, const std::vector<Words>& of_host = {}) {
    for (int rank = 0; rank < hosts * per_host; ++rank) {
      const int host = rank / per_host;
      auto options = clean();
      const auto set = [&](const char* name, const std::string& value) {
        options.environment.push_back(fmt::format("{}={}", name, value));
      };
      set("RANK", std::to_string(rank));
      set("LOCAL_RANK", std::to_string(rank % per_host));
      set("GROUP_RANK", std::to_string(host));
      set("WORLD_SIZE", std::to_string(hosts * per_host));
      set("LOCAL_WORLD_SIZE", std::to_string(per_host));
      set("MASTER_ADDR", "127.0.0.1");
      set("MASTER_PORT", std::to_string(server_.port()));
      set("DTRUN_LOG_DIR", logs_.file("host" + std::to_string(host)));
      set("TORCHELASTIC_ERROR_FILE", error_path(rank));
      set("OMP_NUM_THREADS", "1");
      Words words{DTRUN_WORKER_PROGRAM};
      words.insert(words.end(), arguments.begin(), arguments.end());
      if (!of_host.empty()) {
        const auto& more = of_host[static_cast<std::size_t>(host)];
        words.insert(words.end(), more.begin(), more.end());
      }
      ranks_.push_back(std::make_unique<Job>(words, options));
    }
  }

  Job& rank(int number) { return *ranks_[static_cast<std::size_t>(number)]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  std::string log(int host, int rank) const { return logs_.file(fmt::format("host{}/{}/steps.jsonl", host, rank)); }
  json error(int number) const {
    const auto text = read_file(error_path(number));
    return text.empty() ? json() : json::parse(text);
  }
  void expect_success() {
    for (int number = 0; number < size(); ++number) {
      const auto status = rank(number).wait(seconds(60));
      REQUIRE(status);
      INFO(rank(number).error());
      CHECK(status->shell_code() == 0);
    }
  }

 private:
  std::string error_path(int rank) const { return logs_.file(fmt::format("error{}.json", rank)); }

  StoreOnThread server_;
  TempDirectory logs_;
  std::vector<std::unique_ptr<Job>> ranks_;
};

std::string hash_in(const std::string& out) {
  const auto hash = last_capture(out, "params xxh64=([0-9a-f]{16})");
  return hash.empty() ? "none in " + out : hash;
}

std::string hash_of(const Words& command) {
  Job job(command, clean());
  const auto status = job.wait(seconds(60));
  INFO(job.error());
  REQUIRE(status);
  CHECK(status->shell_code() == 0);
  return hash_in(job.out());
}

}  // namespace

TEST_CASE("ranks on two hosts train to the bits of one host, and of one process that accumulates") {
  const Words small_buckets{"--steps", "8", "--bucket-mb", "0.01"};
  Hosts hosts(2, 2, tiny(small_buckets));
  hosts.expect_success();
  const auto out = hosts.rank(0).out();
  CHECK_THAT(out, Contains("4 ranks on 2 hosts") && Contains("collectives over gloo"));
  for (int rank = 1; rank < 4; ++rank) CHECK(hosts.rank(rank).out().empty());
  for (int rank = 0; rank < 4; ++rank) CHECK(steps_logged(hosts.log(rank / 2, rank)) == 8);
  const auto hash = hash_in(out);
  CHECK(hash == hash_of(launch({"--nproc-per-node=4"}, tiny(small_buckets))));
  CHECK(hash == hash_of(launch({"--nproc-per-node=4"}, tiny({"--steps", "8", "--backend", "gloo", "--comm-thread"}))));
  CHECK(hash == hash_of(launch({"--nproc-per-node=1"}, tiny({"--steps", "8", "--micro-batches", "4"}))));
}

TEST_CASE("hello, bench and the default run work over several hosts") {
  {
    Hosts hosts(3, 1, {"hello"});
    hosts.expect_success();
    CHECK_THAT(hosts.rank(0).out(), Contains("3 ranks on 3 hosts") && Contains("all ranks met"));
  }
  {
    Hosts hosts(2, 1, {"bench", "--op", "all", "--max-bytes", "1M", "--iterations", "3"});
    hosts.expect_success();
    CHECK_THAT(hosts.rank(0).out(), Contains("reduce_scatter") && Contains("1048576"));
  }
  {
    Hosts hosts(2, 1, {});
    hosts.expect_success();
    CHECK_THAT(hosts.rank(0).out(), Contains("host0/0/model.safetensors") && Contains("params xxh64="));
    CHECK(steps_logged(hosts.log(0, 0)) > 0);
    CHECK(steps_logged(hosts.log(1, 1)) == steps_logged(hosts.log(0, 0)));
  }
}

TEST_CASE("hosts with other data are told apart before the first step") {
  const TempDirectory data;
  const auto one = data.write("one.txt", std::string(5000, 'a'));
  const auto two = data.write("two.txt", std::string(5000, 'b'));
  Hosts hosts(2, 2, tiny({"--steps", "2"}), {{"--data", one.string()}, {"--data", two.string()}});
  for (int rank = 0; rank < 4; ++rank) {
    const auto status = hosts.rank(rank).wait(seconds(60));
    REQUIRE(status);
    CHECK(status->shell_code() == 2);
    CHECK_THAT(hosts.error(rank)["message"]["message"].get<std::string>(),
               Contains("rank 2 reads other data") && Contains("the same files on every host"));
  }
}

TEST_CASE("kill -9 of a rank ends the ranks of all hosts within a second, and each names it") {
  Hosts hosts(2, 2, tiny({"--steps", "1000000"}));
  REQUIRE(eventually([&] { return steps_logged(hosts.log(1, 3)) > 3; }, seconds(30)));
  const auto pid = hosts.rank(3).pid();
  const auto start = std::chrono::steady_clock::now();
  hosts.rank(3).signal(SIGKILL);
  for (int rank = 0; rank < 3; ++rank) {
    const auto status = hosts.rank(rank).wait(seconds(10));
    REQUIRE(status);
    CHECK(status->shell_code() == 1);
    CHECK_THAT(hosts.rank(rank).error(), Contains(fmt::format("rank 3 (pid {} on ", pid)) && Contains("REDUCE"));
  }
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  // The worker itself waits 250 ms, for its launcher to see the other's end first.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(1250));
#endif
}

TEST_CASE("a rank that stands still is blamed by the error files of the other hosts") {
  Hosts hosts(2, 1, tiny({"--steps", "1000000", "--timeout", "2"}));
  REQUIRE(eventually([&] { return steps_logged(hosts.log(1, 1)) > 3; }, seconds(30)));
  hosts.rank(1).signal(SIGSTOP);
  const auto status = hosts.rank(0).wait(seconds(15));
  REQUIRE(status);
  CHECK(status->shell_code() == 1);
  const auto error = hosts.error(0);
  CHECK(error["message"]["extraInfo"]["blames_rank"] == 1);
  CHECK_THAT(error["message"]["message"].get<std::string>(), Contains("rank 1 is missing"));
  hosts.rank(1).signal(SIGCONT);
  REQUIRE(hosts.rank(1).wait(seconds(15)));
  CHECK_THAT(hosts.rank(1).error(), Contains("missing:\n  rank 1"));
}
