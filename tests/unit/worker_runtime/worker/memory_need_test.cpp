#include "worker_runtime/worker/memory_need.hpp"

#include <stdlib.h>

#include <fstream>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "worker_runtime/worker/trainer.hpp"

using namespace dtrun::runtime;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

// A small /proc and /sys.
struct Tree : dtrun::tests::TempDirectory {
  std::optional<double> available() const { return available_memory(path()); }
};

}  // namespace

TEST_CASE("available memory is what the host has free, within the limit of the control group") {
  const Tree tree;
  CHECK_FALSE(tree.available());
  tree.write("proc/meminfo", "MemTotal: 99 kB\nMemFree: 1 kB\nMemAvailable: 8 kB\nSwapFree: 2 kB\n");
  CHECK(tree.available() == 10 * 1024);
  tree.write("proc/self/cgroup", "0::/a/b\n");
  tree.write("sys/fs/cgroup/a/b/memory.max", "max\n");
  CHECK(tree.available() == 10 * 1024);
  tree.write("sys/fs/cgroup/a/memory.max", "4096\n");
  CHECK(tree.available() == 4096);
  tree.write("proc/self/cgroup", "11:memory:/x\n10:cpu:/a\n");
  tree.write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2048\n");
  CHECK(tree.available() == 2048);
}

TEST_CASE("a model that cannot fit is refused with numbers before anything is allocated") {
  TrainConfig config;
  config.hidden = 1 << 20;
  config.heads = 1 << 10;
  CHECK_THROWS_WITH(check_inputs(config, 2, 2), Contains("PiB of memory") && Contains("parameters") &&
                                                    Contains("optimizer") && Contains("are available"));
  CHECK_THROWS_AS(check_inputs(config, 2, 2), dtrun::UsageError);
  CHECK_NOTHROW(check_inputs(TrainConfig{}, 2, 2));
  config = {};
  config.batch_size = 1 << 20;
  config.seq_len = 4096;
  config.layers = 4096;
  CHECK_THROWS_WITH(check_inputs(config, 1, 1), Contains("activations"));
}

TEST_CASE("a data file with too many samples is refused, not ended by the kernel") {
  auto pattern = (fs::temp_directory_path() / "dtrun-sparse-XXXXXX").string();
  const int fd = ::mkstemp(pattern.data());
  REQUIRE(fd >= 0);
  const bool sparse = ::ftruncate(fd, off_t{1} << 39) == 0;
  ::close(fd);
  TrainConfig config;
  config.data = {pattern};
  config.seq_len = 1;
  if (sparse) CHECK_THROWS_WITH(check_inputs(config, 1, 1), Contains("data and its order 4.0 TiB"));
  fs::remove(pattern);
}

TEST_CASE("the need is a lower bound that counts every rank of the host") {
  TrainConfig config;
  const auto need = least_memory(config, 1000, 10);
  CHECK(need.parameters == 4000);
  CHECK(need.gradients == 4000);
  CHECK(need.optimizer == 8000);
  config.micro_batches = 2;
  CHECK(least_memory(config, 1000, 10).gradients == 8000);
  CHECK_NOTHROW(require_memory(need, 2, need.total() * 2));
  CHECK_THROWS_AS(require_memory(need, 3, need.total() * 2), dtrun::UsageError);
  CHECK_NOTHROW(require_memory(need, 3, std::nullopt));
  CHECK(bytes_text(1536) == "1.5 KiB");
  CHECK(bytes_text(7) == "7 bytes");
}
