#include "tests/catch.hpp"

#include <filesystem>
#include <fstream>

#include "launcher/agent/oom_counter.hpp"
#include "tests/support/files.hpp"

namespace fs = std::filesystem;
using dtrun::launcher::OomCounter;

namespace {

struct FakeCgroup : dtrun::tests::TempDirectory {
  OomCounter counter() const { return OomCounter(file("membership"), path().string()); }
};

}  // namespace

TEST_CASE("the OOM killer's count is read from cgroup v2 and v1, and is 0 without either") {
  const FakeCgroup fake;
  CHECK(fake.counter().read() == 0);
  SECTION("v2") {
    fake.write("membership", "0::/a/b\n");
    fake.write("a/b/memory.events", "low 0\noom 9\noom_kill 3\noom_group_kill 7\n");
    const auto counter = fake.counter();
    CHECK(counter.read() == 3);
    fake.write("a/b/memory.events", "low 0\noom 9\noom_kill 4\n");
    CHECK(counter.read() == 4);
    fs::remove(fake.file("a/b/memory.events"));
    CHECK(counter.read() == 0);
  }
  SECTION("v1 beside an empty v2") {
    fake.write("membership", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/job\n0::/\n");
    fake.write("memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 12");
    fake.write("memory/memory.oom_control", "oom_kill 99\n");
    CHECK(fake.counter().read() == 12);
  }
  SECTION("a container that does not see its path") {
    fake.write("membership", "0::/host/path\n");
    fake.write("memory.events", "oom_kill 2\n");
    CHECK(fake.counter().read() == 2);
  }
  SECTION("nonsense") {
    fake.write("membership", "x\n:\n0::/\n4:memory");
    fake.write("memory.events", "oom_kill many\n");
    CHECK(fake.counter().read() == 0);
  }
}
