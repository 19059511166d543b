// What is saved under one layout is loaded under every other, bit by bit and byte by byte.
#include <filesystem>
#include <numeric>
#include <random>

#include "tests/catch.hpp"
#include "tests/support/checkpoint_state.hpp"

using namespace dtrun;
using namespace dtrun::test;
using namespace dtrun::runtime;

namespace {

// Loads with every rank of another layout; the bytes that all of them read.
void load_everywhere(const std::filesystem::path& step, Cut cut, int world, std::int64_t saved_step) {
  for (int rank = 0; rank < world; ++rank) {
    const auto pieces = cut_state(cut, rank, world);
    const auto counters = load_checkpoint(step, pieces);
    expect_filled(pieces, saved_step);
    expect(counters.bytes_read == bytes_of(pieces), "exactly the bytes that the rank holds");
  }
}

// Elements 0..n in pieces that begin anywhere, each held by up to three ranks.
std::vector<std::vector<StatePiece>> random_cut(std::mt19937& random, int world) {
  std::vector<std::vector<StatePiece>> ranks(static_cast<std::size_t>(world));
  const auto below = [&](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n)(random); };
  for (const auto& whole : whole_tensors()) {
    const bool by_columns = whole.shape.rank() == 2 && below(1) == 0;
    const auto width = by_columns ? whole.shape[1] : 0, all = by_columns ? width : whole.shape.numel();
    std::vector<std::int64_t> ends{0, all};
    for (auto cuts = below(6); cuts > 0; --cuts) ends.push_back(below(all));
    std::ranges::sort(ends);
    for (std::size_t i = 1; i < ends.size(); ++i) {
      const auto from = ends[i - 1], count = ends[i] - from;
      const auto replicas = static_cast<int>(below(std::min(world, 3) - 1)) + 1,
                 first = static_cast<int>(below(world - 1));
      for (int replica = 0; replica < replicas; ++replica) {
        const ops::GlobalIndex where{from, by_columns ? count : 0, by_columns ? width : 0, 0};
        ranks[static_cast<std::size_t>((first + replica) % world)].push_back(
            make_piece(whole, where, by_columns ? count * whole.shape[0] : count, replicas, replica));
      }
    }
  }
  return ranks;
}

}  // namespace

TEST_CASE("every layout of one to four ranks is loaded under every other, and every byte is written once") {
  for (const Cut saved : kCuts) {
    for (const int world : {1, 2, 3, 4}) {
      const tests::TempDirectory directory;
      const auto outcomes = save_job(directory.path(), saved, world, 12);
      REQUIRE(errors_of(outcomes).empty());
      const auto written = std::accumulate(outcomes.begin(), outcomes.end(), std::uint64_t{0},
                                           [](auto sum, const auto& outcome) { return sum + outcome.bytes_written; });
      CHECK(written == static_cast<std::uint64_t>(whole_elements()) * sizeof(float));
      const auto step = directory.path() / "step_00000012";
      CHECK(outcomes[0].path == step);
      for (const Cut loaded : kCuts)
        for (const int ranks : {1, 2, 3, 4}) CHECK_NOTHROW(load_everywhere(step, loaded, ranks, 12));
    }
  }
}

TEST_CASE("any cut is loaded under any other cut, reading exactly its bytes") {
  std::mt19937 random(21);
  for (int round = 0; round < 15; ++round) {
    const int world = 1 + static_cast<int>(random() % 4), other = 1 + static_cast<int>(random() % 4);
    const tests::TempDirectory directory;
    const auto saved = random_cut(random, world), loaded = random_cut(random, other);
    const auto outcomes = save_job(directory.path(), Cut::rows, world, 3, [&](int rank, auto&, auto& pieces) {
      pieces = saved[static_cast<std::size_t>(rank)];
      fill(pieces, 3);
    });
    REQUIRE(errors_of(outcomes).empty());
    for (const auto& pieces : loaded) {
      const auto counters = load_checkpoint(outcomes[0].path, pieces);
      CHECK_NOTHROW(expect_filled(pieces, 3));
      CHECK(counters.bytes_read == bytes_of(pieces));
    }
  }
}

TEST_CASE("neighbouring ranges are read at once, whatever cut the piece") {
  const tests::TempDirectory directory;
  const WholeTensor whole{"w", {64, 32}};
  const auto save_as = [&](std::int64_t step, ops::GlobalIndex where) {
    return save_job(directory.path(), Cut::rows, 1, step, [&](int, auto&, auto& pieces) {
      pieces = {make_piece(whole, where, 64 * 32)};
      fill(pieces, step);
    });
  };
  const auto path = save_as(1, {}).at(0).path;
  const auto ranges_of = [&](const std::vector<StatePiece>& pieces) { return load_checkpoint(path, pieces).ranges; };
  CHECK(ranges_of({make_piece(whole, {}, 64 * 32)}) == 1);
  CHECK(ranges_of({make_piece(whole, {.first = 100}, 50)}) == 1);
  CHECK(ranges_of({make_piece(whole, {4, 8, 32, 0}, 8 * 64)}) == 64);
  CHECK(ranges_of({make_piece(whole, {0, 32, 32, 0}, 32 * 64)}) == 1);
  CHECK(ranges_of({make_piece(whole, {}, 0)}) == 0);
  // Saved by columns: the whole tensor lies together, in another order.
  const auto columns = save_job(directory.path(), Cut::columns, 1, 2).at(0).path;
  const auto pieces = cut_state(Cut::rows, 0, 1);
  CHECK(load_checkpoint(columns, pieces).ranges <= pieces.size());
}

TEST_CASE("what the checkpoint lacks or has in another shape is named, before anything changes") {
  const tests::TempDirectory directory;
  REQUIRE_NOTHROW(save_well(directory.path(), Cut::rows, 2, 5));
  const auto step = directory.path() / "step_00000005";
  std::vector<StatePiece> pieces{make_piece({"h.0.b", {36}}, {}, 36), make_piece({"h.0.w", {12, 35}}, {}, 420),
                                 make_piece({"h.9.w", {2}}, {}, 2)};
  pieces[0].tensor.zero();
  CHECK_THROWS_WITH(load_checkpoint(step, pieces), Catch::Contains("\"h.0.w\" is [12, 36] there, expected [12, 35]") &&
                                                       Catch::Contains("\"h.9.w\" is missing"));
  CHECK(pieces[0].tensor.span<float>()[3] == 0.0F);
  CHECK_THROWS_WITH(load_checkpoint(directory.path() / "step_00000006", pieces), Catch::Contains("meta.json"));
}
