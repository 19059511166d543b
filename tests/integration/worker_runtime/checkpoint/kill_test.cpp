// A program that saves again and again is killed at random moments: what it announced last, or something newer, is
// always loadable, and the next start leaves nothing of the broken save.
#include <random>

#include "tests/catch.hpp"
#include "tests/support/checkpoint_state.hpp"

using namespace dtrun;
using namespace dtrun::test;
using namespace dtrun::runtime;
namespace fs = std::filesystem;

namespace {

// Saves with two ranks until it is killed. Every third save is one of a step that is there already.
void save_for_ever(const fs::path& directory, std::int64_t first, int announcements) {
  const auto store = std::make_shared<rendezvous::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      CheckpointWriter writer({.directory = directory, .rank = rank, .world = 2, .store = store});
      const auto pieces = cut_state(Cut::anywhere, rank, 2);
      for (std::int64_t number = 0;; ++number) {
        const auto step = first + number - number / 3;
        fill(pieces, step);
        writer.save({.step = step}, pieces);
        const auto outcome = writer.wait().at(0);
        if (!outcome.error.empty()) ::_exit(1);
        if (rank == 0 && ::write(announcements, &step, sizeof step) != sizeof step) ::_exit(2);
      }
    });
  }
  for (auto& rank : ranks) rank.join();
}

// The last step that it announced, when it was killed `later` after the first.
std::int64_t kill_while_saving(const fs::path& directory, std::int64_t first, std::chrono::microseconds later) {
  std::array<int, 2> ends{};
  expect(::pipe(ends.data()) == 0, "a pipe");
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t pid = ::fork();
  expect(pid >= 0, "a process");
  if (pid == 0) {
    save_for_ever(directory, first, ends[1]);
    ::_exit(3);
  }
  writer.reset();
  std::int64_t step = -1, last = -1;
  pollfd query{reader.value(), POLLIN, 0};
  if (::poll(&query, 1, 30000) == 1 && ::read(reader.value(), &step, sizeof step) == sizeof step) last = step;
  std::this_thread::sleep_for(later);  // the random moment
  ::kill(pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  while (::read(reader.value(), &step, sizeof step) == sizeof step) last = step;
  expect(WIFSIGNALED(status) && last >= 0, "a program that saves until it is killed");
  return last;
}

}  // namespace

TEST_CASE("kill -9 at 40 random moments of saving loses nothing that was announced") {
  const tests::TempDirectory directory;
  std::mt19937 random(51);
  std::int64_t next = 1;
  for (int round = 0; round < 40; ++round) {
    const auto announced = kill_while_saving(directory.path(), next, std::chrono::microseconds(random() % 30000));
    const auto choice = choose_job(directory.path(), 1);
    REQUIRE(choice.path);
    CHECK(choice.passed_over.empty());
    CHECK(choice.meta.step >= announced);
    CHECK(choice.meta.step <= announced + 1);
    const auto pieces = cut_state(Cut::rows, 0, 1);
    load_checkpoint(*choice.path, pieces);
    CHECK_NOTHROW(expect_filled(pieces, choice.meta.step));
    { CheckpointWriter start({.directory = directory.path()}); }
    for (const auto& entry : fs::directory_iterator(directory.path()))
      CHECK_FALSE(entry.path().filename().string().starts_with("."));
    CHECK(directory.entries() <= 4);  // latest, two that are kept and one that is newer than those
    next = choice.meta.step + 1;
  }
}
