// A rank's state in a memfd: what one life wrote the next one reads, whole or not at all.
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/catch.hpp"
#include "worker_runtime/worker/memory_snapshot.hpp"

using namespace dtrun::runtime;
using dtrun::UniqueFd;

namespace {

struct State {
  std::vector<StatePiece> pieces;
  explicit State(float value, std::int64_t numel = 1000) {
    for (const auto* name : {"a", "b"}) {
      pieces.push_back({.name = name, .shape = {numel}, .tensor = Tensor::on_host({numel}, DType::f32)});
      std::ranges::fill(pieces.back().tensor.span<float>(), value);
    }
  }
  bool all(float value) const {
    return std::ranges::all_of(pieces, [&](const StatePiece& piece) {
      return std::ranges::all_of(piece.tensor.span<float>(), [&](float x) { return x == value; });
    });
  }
};

class Memory {
 public:
  UniqueFd again() const { return UniqueFd(::dup(fd_.value())); }
  off_t size() const {
    struct stat status {};
    ::fstat(fd_.value(), &status);
    return status.st_size;
  }
  const UniqueFd& fd() const { return fd_; }

 private:
  UniqueFd fd_{::memfd_create("test", MFD_CLOEXEC)};
};

}  // namespace

TEST_CASE("the two newest states are in memory for the next life of the rank") {
  const Memory memory;
  {
    MemorySnapshot first(memory.again(), State(0).pieces, 1, 2);
    CHECK(first.steps().empty());
    CHECK(memory.size() == 0);  // nothing is taken before it is needed
    for (int step = 1; step <= 5; ++step) {
      first.write(step, "run " + std::to_string(step), State(static_cast<float>(step)).pieces);
      CHECK(first.steps().front() == step);
    }
  }
  const State state(0);
  const MemorySnapshot next(memory.again(), state.pieces, 1, 2);
  REQUIRE(next.steps() == std::vector<std::int64_t>{5, 4});
  for (const int step : {4, 5}) {
    CHECK(next.text_of(step) == "run " + std::to_string(step));
    next.read(step, state.pieces);
    CHECK(state.all(static_cast<float>(step)));
  }
}

TEST_CASE("memory of another rank, world or layout, or of something else, is void and is written anew") {
  const Memory memory;
  MemorySnapshot(memory.again(), State(0).pieces, 1, 2).write(7, "run", State(7).pieces);
  CHECK(MemorySnapshot(memory.again(), State(0).pieces, 0, 2).steps().empty());
  CHECK(MemorySnapshot(memory.again(), State(0).pieces, 1, 3).steps().empty());
  CHECK(MemorySnapshot(memory.again(), State(0, 999).pieces, 1, 2).steps().empty());
  auto moved = State(0);
  moved.pieces[1].where.first = 3;
  CHECK(MemorySnapshot(memory.again(), moved.pieces, 1, 2).steps().empty());
  CHECK(MemorySnapshot(memory.again(), State(0).pieces, 1, 2).steps() == std::vector<std::int64_t>{7});

  MemorySnapshot other(memory.again(), State(0, 50).pieces, 0, 1);
  other.write(1, "other", State(1, 50).pieces);
  CHECK(other.steps() == std::vector<std::int64_t>{1});
  CHECK(MemorySnapshot(memory.again(), State(0).pieces, 1, 2).steps().empty());

  std::vector<char> noise(static_cast<std::size_t>(memory.size()), 'x');
  REQUIRE(::pwrite(memory.fd().value(), noise.data(), noise.size(), 0) == static_cast<ssize_t>(noise.size()));
  CHECK(MemorySnapshot(memory.again(), State(0, 50).pieces, 0, 1).steps().empty());
}

TEST_CASE("a rank that is killed while it writes leaves a whole state") {
  const Memory memory;
  const std::int64_t numel = 300'000;
  const State state(0, numel);
  int seen = 0;
  for (int time = 0; time < 20; ++time) {
    const pid_t child = ::fork();
    if (child == 0) {
      State mine(0, numel);
      MemorySnapshot snapshot(memory.again(), mine.pieces, 0, 1);
      for (std::int64_t step = 1;; ++step) {
        for (const auto& piece : mine.pieces) std::ranges::fill(piece.tensor.span<float>(), static_cast<float>(step));
        snapshot.write(step, std::to_string(step), mine.pieces);
      }
    }
    ::usleep(static_cast<useconds_t>(1000 + 997 * time));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const MemorySnapshot left(memory.again(), state.pieces, 0, 1);
    for (const auto step : left.steps()) {
      left.read(step, state.pieces);
      CHECK(left.text_of(step) == std::to_string(step));
      CHECK(state.all(static_cast<float>(step)));
      ++seen;
    }
  }
  CHECK(seen > 0);  // on a busy machine some are killed before their first state
}

TEST_CASE("a text that is too long and memory that is not there are errors") {
  const Memory memory;
  MemorySnapshot snapshot(memory.again(), State(0).pieces, 0, 1);
  CHECK_THROWS_WITH(snapshot.write(1, std::string(MemorySnapshot::kLongestText + 1, 'x'), State(1).pieces),
                    Catch::Contains("1048577 bytes"));
  CHECK(snapshot.steps().empty());
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const UniqueFd other_end(ends[1]);
  MemorySnapshot nowhere(UniqueFd{ends[0]}, State(0).pieces, 0, 1);
  CHECK_THROWS(nowhere.write(1, "run", State(1).pieces));
}
