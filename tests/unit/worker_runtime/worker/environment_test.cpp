#include "worker_runtime/worker/environment.hpp"

#include <stdlib.h>

#include <map>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"

using namespace dtrun::runtime;
using Catch::Contains;

namespace {

// Sets exactly these of the launcher's variables, and puts the old ones back.
class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& values) {
    for (const auto* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
          "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "DTRUN_LOG_DIR"}) {
      const char* old = ::getenv(name);
      old_.emplace(name, old == nullptr ? std::string("\x01") : old);
      ::unsetenv(name);
    }
    for (const auto& [name, value] : values) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : old_)
      value == "\x01" ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::map<std::string, std::string> old_;
};

}  // namespace

TEST_CASE("without a launcher the worker says how to start it") {
  const Variables none({});
  CHECK_THROWS_AS(WorkerEnvironment::read(false), dtrun::UsageError);
  CHECK_THROWS_WITH(WorkerEnvironment::read(false), Contains("RANK is not set") &&
                                                        Contains("dtrun --nproc-per-node=4 worker") &&
                                                        Contains("--standalone"));
  const auto alone = WorkerEnvironment::read(true);
  CHECK(alone.world_size == 1);
  CHECK(alone.local_world_size == 1);
}

TEST_CASE("the launcher's variables are the rank's place") {
  const Variables all({{"RANK", "3"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "::1"},
                       {"MASTER_PORT", "29500"},
                       {"TORCHELASTIC_RESTART_COUNT", "2"},
                       {"DTRUN_LOG_DIR", "/tmp/x"}});
  const auto place = WorkerEnvironment::read(false);
  CHECK(place.rank == 3);
  CHECK(place.world_size == 8);
  CHECK(place.local_rank == 1);
  CHECK(place.local_world_size == 2);
  CHECK(place.master_addr == "::1");
  CHECK(place.master_port == 29500);
  CHECK(place.restart_count == 2);
  CHECK(place.log_directory == "/tmp/x");
  CHECK(WorkerEnvironment::rank_text() == "rank 3");
  CHECK_THROWS_WITH(WorkerEnvironment::read(true), Contains("--standalone") && Contains("WORLD_SIZE is 8"));
}

TEST_CASE("missing and wrong variables are named") {
  const std::map<std::string, std::string> good{
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}};
  for (const auto* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    auto some = good;
    some.erase(name);
    const Variables variables(some);
    CHECK_THROWS_WITH(WorkerEnvironment::read(false), Contains(name) && Contains("not set"));
  }
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"RANK", "x"}, {"RANK", "2"}, {"WORLD_SIZE", "0"}, {"MASTER_PORT", "70000"}}) {
    auto some = good;
    some[name] = value;
    const Variables variables(some);
    CHECK_THROWS_WITH(WorkerEnvironment::read(false), Contains(name));
  }
}
