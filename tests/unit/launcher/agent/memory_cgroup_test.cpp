#include "tests/catch.hpp"

#include <filesystem>
#include <fstream>

#include "launcher/agent/memory_cgroup.hpp"
#include "tests/support/files.hpp"

namespace fs = std::filesystem;
using dtrun::launcher::MemoryCgroup;

namespace {

struct FakeCgroup : dtrun::tests::TempDirectory {
  MemoryCgroup counter() const { return MemoryCgroup(file("membership"), path().string()); }
};

}  // namespace

TEST_CASE("the OOM killer's count is read from cgroup v2 and v1, and is 0 without either") {
  const FakeCgroup fake;
  CHECK(fake.counter().oom_kills() == 0);
  SECTION("v2") {
    fake.write("membership", "0::/a/b\n");
    fake.write("a/b/memory.events", "low 0\noom 9\noom_kill 3\noom_group_kill 7\n");
    const auto counter = fake.counter();
    CHECK(counter.oom_kills() == 3);
    fake.write("a/b/memory.events", "low 0\noom 9\noom_kill 4\n");
    CHECK(counter.oom_kills() == 4);
    fs::remove(fake.file("a/b/memory.events"));
    CHECK(counter.oom_kills() == 0);
  }
  SECTION("v1 beside an empty v2") {
    fake.write("membership", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/job\n0::/\n");
    fake.write("memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 12");
    fake.write("memory/memory.oom_control", "oom_kill 99\n");
    CHECK(fake.counter().oom_kills() == 12);
  }
  SECTION("a container that does not see its path") {
    fake.write("membership", "0::/host/path\n");
    fake.write("memory.events", "oom_kill 2\n");
    CHECK(fake.counter().oom_kills() == 2);
  }
  SECTION("nonsense") {
    fake.write("membership", "x\n:\n0::/\n4:memory");
    fake.write("memory.events", "oom_kill many\n");
    CHECK(fake.counter().oom_kills() == 0);
  }
}

TEST_CASE("limit and peak of the memory cgroup: the tightest limit up to the root counts") {
  const FakeCgroup fake;
  CHECK_FALSE(fake.counter().limit());
  CHECK_FALSE(fake.counter().peak());
  SECTION("v2") {
    fake.write("membership", "0::/job/step\n");
    fake.write("job/step/memory.events", "oom_kill 0\n");
    fake.write("job/step/memory.max", "max\n");
    fake.write("job/step/memory.peak", "73400320\n");
    CHECK_FALSE(fake.counter().limit());
    fake.write("job/memory.max", "104857600\n");
    CHECK(fake.counter().limit() == 104857600u);
    CHECK(fake.counter().peak() == 73400320u);
    fake.write("job/step/memory.max", "83886080\n");
    CHECK(fake.counter().limit() == 83886080u);
  }
  SECTION("v1") {
    fake.write("membership", "4:memory:/job\n0::/\n");
    fake.write("memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
    fake.write("memory/job/memory.limit_in_bytes", "9223372036854771712\n");
    fake.write("memory/job/memory.max_usage_in_bytes", "1048576\n");
    CHECK_FALSE(fake.counter().limit());
    CHECK(fake.counter().peak() == 1048576u);
    fake.write("memory/memory.limit_in_bytes", "2097152\n");
    CHECK(fake.counter().limit() == 2097152u);
  }
}

TEST_CASE("each kill of the OOM killer is claimed once, those from before never") {
  const FakeCgroup fake;
  fake.write("membership", "0::/a\n");
  fake.write("a/memory.events", "oom_kill 3\n");
  auto cgroup = fake.counter();
  cgroup.forget_oom_kills();
  CHECK_FALSE(cgroup.claim_oom_kill());
  fake.write("a/memory.events", "oom_kill 5\n");
  CHECK(cgroup.claim_oom_kill());
  CHECK(cgroup.unclaimed_oom_kills() == 1);
  CHECK(cgroup.claim_oom_kill());
  CHECK_FALSE(cgroup.claim_oom_kill());
  CHECK(cgroup.unclaimed_oom_kills() == 0);
}
