// Every kind of damage is seen and named, and the checkpoint before it is taken.
#include <fstream>
#include <random>

#include "tests/catch.hpp"
#include "tests/support/checkpoint_state.hpp"

using namespace dtrun;
using namespace dtrun::test;
using namespace dtrun::runtime;
namespace fs = std::filesystem;

namespace {

constexpr int kWorld = 3;

// Two checkpoints of the same layout, so that files of one fit the other.
struct Two {
  tests::TempDirectory directory;
  fs::path older = directory.path() / "step_00000010", newer = directory.path() / "step_00000020";

  Two() {
    for (const int step : {10, 20}) save_well(directory.path(), Cut::rows, kWorld, step);
  }
  // What was said of the newer one; throws when the older one was not taken.
  std::string fault(int ranks = 2) const {
    const auto choice = choose_job(directory.path(), ranks);
    expect(choice.path == older && choice.meta.step == 10, "the older checkpoint to be taken");
    expect(choice.passed_over.size() == 1, "one to be passed over");
    return choice.passed_over[0];
  }
};

std::vector<std::string> files_of(const fs::path& step) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(step)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

void exchange(const fs::path& a, const fs::path& b) {
  const auto between = a.parent_path() / "between";
  fs::rename(a, between);
  fs::rename(b, a);
  fs::rename(between, b);
}

void flip_bit(const fs::path& path, std::uint64_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const auto byte = static_cast<char>(file.get() ^ (1 << bit % 8));
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(byte);
}

}  // namespace

TEST_CASE("a file that is missing, cut, longer or empty is named, whichever it is") {
  const Two two;
  const auto before = two.directory.path() / "before";
  fs::copy(two.newer, before);
  for (const auto& name : files_of(before)) {
    const auto path = two.newer / name;
    const auto size = fs::file_size(path);
    const std::vector<std::function<void()>> damages{
        [&] { fs::remove(path); },
        [&] { fs::resize_file(path, size - 1); },
        [&] { fs::resize_file(path, size / 2); },
        [&] { fs::resize_file(path, 0); },
        [&] { fs::resize_file(path, size + 1); },
        [&] { fs::remove(path), fs::create_directory(path); },
    };
    for (const auto& damage : damages) {
      damage();
      CHECK_THAT(two.fault(), Catch::StartsWith("step_00000020: " + name + ": "));
      fs::remove(path);
      fs::copy(before / name, path);
    }
  }
  CHECK(choose_job(two.directory.path(), 2).path == two.newer);
}

TEST_CASE("a bit that is flipped anywhere is seen, and the file named") {
  const Two two;
  std::mt19937_64 random(41);
  for (const auto& name : files_of(two.newer)) {
    const auto bits = fs::file_size(two.newer / name) * 8;
    for (int round = 0; round < 12; ++round) {
      // The first and last bytes, and some between.
      const auto bit = round == 0 ? 0 : round == 1 ? bits - 1 : random() % bits;
      CAPTURE(name, bit);
      flip_bit(two.newer / name, bit);
      CHECK_THAT(two.fault(1 + round % 3), Catch::StartsWith("step_00000020: " + name + ": "));
      flip_bit(two.newer / name, bit);
    }
  }
  CHECK(choose_job(two.directory.path(), 2).path == two.newer);
}

TEST_CASE("files that stand in for others are seen, within a checkpoint and between two") {
  const Two two;
  exchange(two.newer / "rank_00000.safetensors", two.newer / "rank_00001.safetensors");
  CHECK_THAT(two.fault(), Catch::StartsWith("step_00000020: rank_00000.safetensors: "));
  exchange(two.newer / "rank_00000.safetensors", two.newer / "rank_00001.safetensors");
  for (const auto& name : files_of(two.newer)) {
    const tests::TempDirectory kept;
    fs::copy(two.newer / name, kept.path() / name);
    fs::remove(two.newer / name);
    fs::copy(two.older / name, two.newer / name);
    // A meta.json of another step speaks for itself.
    CHECK_THAT(two.fault(), Catch::StartsWith("step_00000020: " + name + ": "));
    fs::remove(two.newer / name);
    fs::copy(kept.path() / name, two.newer / name);
  }
  fs::rename(two.newer, two.directory.path() / "step_00000030");  // all of it
  CHECK(choose_job(two.directory.path(), 2).passed_over ==
        std::vector<std::string>{"step_00000030: meta.json: it is of step 20"});
}

TEST_CASE("files with equal elements are not taken for each other either") {
  const tests::TempDirectory directory;
  const auto zeros = [](int, auto&, auto& pieces) {
    for (const auto& piece : pieces) piece.tensor.zero();
  };
  for (const int step : {10, 20}) REQUIRE(errors_of(save_job(directory.path(), Cut::rows, 2, step, zeros)).empty());
  exchange(directory.path() / "step_00000010" / "rank_00001.safetensors",
           directory.path() / "step_00000020" / "rank_00001.safetensors");
  const auto choice = choose_job(directory.path(), 2);
  CHECK_FALSE(choice.path);
  REQUIRE(choice.passed_over.size() == 2);
  for (const auto& text : choice.passed_over) CHECK_THAT(text, Catch::Contains(": rank_00001.safetensors: bytes 0 to"));
}

TEST_CASE("every byte is hashed once by all ranks together, whatever their number") {
  const Two two;
  std::uint64_t size = 0;
  for (int rank = 0; rank < kWorld; ++rank)
    size += fs::file_size(two.newer / ("rank_0000" + std::to_string(rank) + ".safetensors"));
  for (const int ranks : {1, 2, 4}) {
    std::vector<std::uint64_t> hashed(static_cast<std::size_t>(ranks));
    run_job(ranks, [&](ProcessGroup& group) {
      hashed[static_cast<std::size_t>(group.rank())] = choose_checkpoint(two.directory.path(), group).bytes_verified;
    });
    std::uint64_t sum = 0;
    for (const auto bytes : hashed) {
      sum += bytes;
      CHECK(bytes < size / static_cast<std::uint64_t>(ranks) + size / 2);
    }
    CHECK(sum == size);
  }
}

TEST_CASE("loading sees a file that was cut after it was verified") {
  const Two two;
  fs::resize_file(two.newer / "rank_00002.safetensors", 1000);
  CHECK_THROWS_WITH(load_checkpoint(two.newer, cut_state(Cut::replicated, 0, 1)),
                    Catch::Contains("rank_00002.safetensors\" has 1000 bytes, expected"));
}
