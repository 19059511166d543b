// Saves that fail: the same error on every rank, older checkpoints kept, nothing left, and the next save works.
#include <sys/mount.h>
#include <sys/stat.h>

#include <limits>

#include "tests/catch.hpp"
#include "tests/support/checkpoint_state.hpp"
#include "tests/support/largest_file.hpp"

using namespace dtrun;
using namespace dtrun::test;
using namespace dtrun::runtime;
namespace fs = std::filesystem;

namespace {

// Of all ranks, which must be equal.
std::string error_of(const Outcomes& outcomes) {
  for (const auto& outcome : outcomes) CHECK(outcome.error == outcomes[0].error);
  return outcomes[0].error;
}

void check_untouched(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const auto name = entry.path().filename().string();
    CHECK((name == "latest" || name == "step_00000001"));
  }
  CHECK(choose_job(directory, 2).meta.step == 1);
}

// A file system of a few pages, where this user may mount one.
class TinyDisk {
 public:
  TinyDisk() : mounted_(::mount("tmpfs", directory_.path().c_str(), "tmpfs", 0, "size=160k") == 0) {}
  ~TinyDisk() {
    if (mounted_) ::umount2(directory_.path().c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const fs::path& path() const { return directory_.path(); }

 private:
  tests::TempDirectory directory_;
  bool mounted_;
};

}  // namespace

TEST_CASE("a rank that cannot write all its bytes fails the save for all, by rank and file") {
  const tests::TempDirectory directory;
  REQUIRE_NOTHROW(save_well(directory.path(), Cut::rows, 2, 1));
  {
    const tests::LargestFile limit(20000);
    const auto error = error_of(save_job(directory.path(), Cut::rows, 3, 2));
    CHECK_THAT(error, Catch::StartsWith("rank ") && Catch::Contains(".safetensors\"") && Catch::Contains("too large"));
  }
  check_untouched(directory.path());
  CHECK_NOTHROW(save_well(directory.path(), Cut::rows, 3, 2));
}

TEST_CASE("a full disk fails the save, keeps the older checkpoint and is free again") {
  const TinyDisk disk;
  if (!disk.mounted()) {
    WARN("skipped: no tmpfs can be mounted here");
    return;
  }
  REQUIRE_NOTHROW(save_well(disk.path(), Cut::rows, 2, 1));
  for (const int step : {2, 3}) {
    const auto error = error_of(save_job(disk.path(), Cut::rows, 2, step));
    CHECK_THAT(error, Catch::StartsWith("rank ") && Catch::Contains("No space left on device"));
    check_untouched(disk.path());
  }
}

TEST_CASE("a writer goes on after a save that failed, and a rank's bad piece is the outcome of all") {
  const tests::TempDirectory directory;
  const auto store = std::make_shared<rendezvous::HashStore>();
  std::vector<Outcomes> outcomes(3);
  run_job(3, [&](ProcessGroup& group) {
    CheckpointWriter writer({.directory = directory.path(), .rank = group.rank(), .world = 3, .store = store});
    auto pieces = cut_state(Cut::rows, group.rank(), 3);
    for (int step = 1; step <= 5; ++step) {
      fill(pieces, step);
      auto saved = pieces;
      if (step == 2 && group.rank() == 1) saved[0].where.first += 1000000;
      if (step == 3 && group.rank() == 2) saved.erase(saved.begin());
      if (step == 5 && group.rank() == 1) saved[1].tensor.span<float>()[3] = std::numeric_limits<float>::infinity();
      writer.save({.step = step, .run = step == 4 ? "7" : "{}"}, saved);
    }
    auto& mine = outcomes[static_cast<std::size_t>(group.rank())];
    mine = writer.wait();
    fill(pieces, 6);
    writer.save({.step = 6}, pieces);
    mine.push_back(writer.wait().at(0));
  });
  for (const auto& mine : outcomes) {
    REQUIRE(mine.size() == 6);
    CHECK(mine[0].error.empty());
    CHECK_THAT(mine[1].error, Catch::StartsWith("rank 1: a piece of \"wte\" [257, 64]: "));
    CHECK_THAT(mine[2].error, Catch::Contains("\"wte\" [257, 64]: elements") && Catch::Contains("missing"));
    CHECK_THAT(mine[3].error, Catch::Contains("no JSON object"));
    CHECK_THAT(mine[4].error, Catch::StartsWith("rank 1: \"") && Catch::Contains("is not finite"));
    CHECK(mine[5].error.empty());
  }
  CHECK(store->num_keys() == 0);
  CHECK(choose_job(directory.path(), 2).meta.step == 6);
}

TEST_CASE("directories that cannot be made or written are named") {
  const tests::TempDirectory directory;
  directory.write("file", "");
  CHECK_THAT(error_of(save_job(directory.path() / "file" / "x", Cut::rows, 2, 1)),
             Catch::StartsWith("rank 0: ") && Catch::Contains("file"));
  CHECK_THAT(error_of(save_job("/proc/dtrun-no", Cut::rows, 2, 1)),
             Catch::StartsWith("rank 0: create \"/proc/dtrun-no\""));
  fs::create_directory(directory.path() / "step_00000003");
  directory.write("step_00000004", "a file in its place");
  CHECK(error_of(save_job(directory.path(), Cut::rows, 2, 3)).empty());  // an empty one is replaced
  CHECK_THAT(error_of(save_job(directory.path(), Cut::rows, 2, 4)),
             Catch::Contains("step_00000004\": Not a directory"));
}

TEST_CASE("a directory that is not shared is told from one that is") {
  const tests::TempDirectory here, elsewhere;
  const auto move = [&](int rank, auto& options, auto&) {
    if (rank == 1) options.directory = elsewhere.path();
  };
  CHECK_THAT(error_of(save_job(here.path(), Cut::rows, 2, 1, move)),
             Catch::StartsWith("rank 1: ") && Catch::Contains("shared by all hosts?"));
  CHECK(fs::is_empty(here.path()));
  REQUIRE_NOTHROW(save_well(here.path(), Cut::rows, 2, 1));
  REQUIRE_NOTHROW(save_well(elsewhere.path(), Cut::rows, 2, 1));
  run_job(2, [&](ProcessGroup& group) {
    const auto choice = choose_checkpoint(group.rank() == 0 ? here.path() : elsewhere.path(), group);
    expect(!choice.path && choice.passed_over.size() == 1, "no checkpoint");
    expect(choice.passed_over[0].find("rank 1 sees another index.json") != std::string::npos, choice.passed_over[0]);
  });
}

TEST_CASE("ranks that do not come end the save at its deadline, by name") {
  const tests::TempDirectory directory;
  REQUIRE_NOTHROW(save_well(directory.path(), Cut::rows, 2, 1));
  for (const int absent : {0, 2}) {
    const auto store = std::make_shared<rendezvous::HashStore>();
    run_job(3, [&](ProcessGroup& group) {
      CheckpointOptions options{.directory = directory.path(), .rank = group.rank(), .world = 3, .store = store};
      options.timeout = std::chrono::milliseconds(400);
      CheckpointWriter writer(options);
      if (group.rank() == absent) return;
      writer.save({.step = 2}, cut_state(Cut::rows, group.rank(), 3));
      const auto error = writer.wait().at(0).error;
      const auto wanted = absent == 0         ? "rank 0 did not begin to save step 2 in time"
                          : group.rank() == 0 ? "rank 2 did not write its part in time"
                                              : "in time";
      expect(error.find(wanted) != std::string::npos, std::string(wanted) + ": " + error);
    });
    check_untouched(directory.path());
  }
}

TEST_CASE("ranks that save different steps are told so") {
  const tests::TempDirectory directory;
  const auto store = std::make_shared<rendezvous::HashStore>();
  run_job(2, [&](ProcessGroup& group) {
    CheckpointWriter writer({.directory = directory.path(), .rank = group.rank(), .world = 2, .store = store});
    writer.save({.step = 5 + group.rank()}, cut_state(Cut::rows, group.rank(), 2));
    expect(writer.wait().at(0).error == "rank 1: it saves step 6, and rank 0 step 5", "the steps");
  });
  CHECK(fs::is_empty(directory.path()));
}

TEST_CASE("a run that fails does not wait for the ranks of its save") {
  const tests::TempDirectory directory;
  const auto store = std::make_shared<rendezvous::HashStore>();
  const auto start = Clock::now();
  const auto pieces = cut_state(Cut::rows, 0, 2);
  const CheckpointOptions options{.directory = directory.path(), .rank = 0, .world = 2, .store = store};
  try {
    CheckpointWriter writer(options);
    writer.save({.step = 1}, pieces);
    throw std::runtime_error("a peer is gone");
  } catch (const std::runtime_error&) {
  }
  CHECK(Clock::now() - start < std::chrono::minutes(1));  // and not options.timeout
  CHECK(fs::is_empty(directory.path()));
  CheckpointWriter writer(options);
  writer.save({.step = 1}, pieces);
  writer.give_up();
  CHECK_THAT(writer.wait().at(0).error, Catch::Contains("the run ended"));
}

TEST_CASE("a save without a thread of its own is over when it returns") {
  const tests::TempDirectory directory;
  CheckpointWriter writer({.directory = directory.path(), .asynchronous = false});
  writer.save({.step = 1}, cut_state(Cut::rows, 0, 1));
  const auto outcomes = writer.poll();
  REQUIRE(outcomes.size() == 1);
  CHECK(outcomes[0].error.empty());
  CHECK(outcomes[0].bytes_written == static_cast<std::uint64_t>(whole_elements()) * sizeof(float));
  CHECK(outcomes[0].copy <= outcomes[0].total);
  CHECK(choose_job(directory.path(), 1).meta.step == 1);
}
