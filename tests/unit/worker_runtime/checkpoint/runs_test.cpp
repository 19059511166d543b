#include "worker_runtime/checkpoint/runs.hpp"

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "worker_runtime/checkpoint/share.hpp"

using namespace dtrun::runtime;
using ops::GlobalIndex;

namespace {

constexpr auto kMost = std::numeric_limits<std::int64_t>::max();

std::vector<Run> list(const Runs& runs) {
  std::vector<Run> all;
  for (std::int64_t i = 0; i < runs.size(); ++i) all.push_back(runs[i]);
  return all;
}

// Element by element, as GlobalIndex is defined.
std::vector<std::int64_t> elements(const GlobalIndex& where, std::int64_t count) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = where.skip; i < where.skip + count; ++i) {
    all.push_back(where.row_length == 0 ? where.first + i
                                        : where.first + i / where.row_length * where.row_stride + i % where.row_length);
  }
  return all;
}
std::vector<std::int64_t> elements(const Runs& runs) {
  std::vector<std::int64_t> all;
  for (const Run& run : list(runs)) {
    REQUIRE(run.local == static_cast<std::int64_t>(all.size()));
    for (std::int64_t i = 0; i < run.count; ++i) all.push_back(run.global + i);
  }
  return all;
}

// Any rows of one length at one distance in a tensor of `numel` elements.
std::pair<GlobalIndex, std::int64_t> any_piece(std::mt19937& random, std::int64_t numel) {
  for (;;) {
    const auto below = [&](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n)(random); };
    const GlobalIndex where{below(numel), below(6), below(9), below(12)};
    const auto count = below(numel);
    if (placement_fault(where, count, numel).empty()) return {where, count};
  }
}

// A partition of `numel` elements in rows of `width`, by columns or anywhere.
std::vector<std::pair<GlobalIndex, std::int64_t>> any_cut(std::mt19937& random, std::int64_t rows, std::int64_t width) {
  const bool by_columns = random() % 2 == 0;
  const auto all = by_columns ? width : rows * width;
  std::vector<std::int64_t> ends{0, all};
  for (auto cuts = random() % 5; cuts > 0; --cuts)
    ends.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(all + 1)));
  std::ranges::sort(ends);
  std::vector<std::pair<GlobalIndex, std::int64_t>> pieces;
  for (std::size_t i = 1; i < ends.size(); ++i) {
    const auto from = ends[i - 1], count = ends[i] - from;
    if (by_columns && count > 0) pieces.push_back({{from, count, width, 0}, count * rows});
    if (!by_columns) pieces.push_back({{0, width, width, from}, count});
  }
  std::ranges::shuffle(pieces, random);
  return pieces;
}

}  // namespace

TEST_CASE("runs are the rows of a piece, joined where they touch") {
  struct Row {
    GlobalIndex where;
    std::int64_t count;
    std::vector<Run> runs;
  };
  const std::vector<Row> rows{
      {{}, 12, {{0, 12, 0}}},
      {{.first = 5}, 3, {{5, 3, 0}}},
      {{.first = 5, .skip = 2}, 3, {{7, 3, 0}}},
      {{2, 3, 10, 0}, 9, {{2, 3, 0}, {12, 3, 3}, {22, 3, 6}}},
      {{2, 3, 10, 1}, 6, {{3, 2, 0}, {12, 3, 2}, {22, 1, 5}}},  // begins and ends in the middle of a row
      {{2, 3, 10, 1}, 2, {{3, 2, 0}}},                          // the end of a row
      {{2, 3, 10, 4}, 3, {{13, 2, 0}, {22, 1, 2}}},             // behind the first row
      {{2, 3, 3, 1}, 7, {{3, 7, 0}}},                           // rows that touch
      {{4, 1, 2, 0}, 3, {{4, 1, 0}, {6, 1, 1}, {8, 1, 2}}},     // a column
      {{2, 3, 10, 0}, 0, {}},
      {{}, 0, {}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.where.first, row.where.row_length, row.where.row_stride, row.where.skip, row.count);
    CHECK(list(Runs(row.where, row.count)) == row.runs);
  }
}

TEST_CASE("runs have the elements of their piece in order, also behind the first ones, and know where to go on") {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    const auto [where, count] = any_piece(random, 60);
    CAPTURE(where.first, where.row_length, where.row_stride, where.skip, count);
    const auto expected = elements(where, count);
    const Runs runs(where, count);
    REQUIRE(elements(runs) == expected);
    REQUIRE((expected.empty() || expected.back() < 60));
    const auto skipped = count == 0 ? 0 : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count));
    REQUIRE(elements(Runs(skip_elements(where, skipped), count - skipped)) ==
            std::vector(expected.begin() + skipped, expected.end()));
    for (std::int64_t global = -1; global < 62; ++global) {
      const auto all = list(runs);
      const auto first = std::ranges::find_if(all, [&](const Run& run) { return run.end() > global; });
      REQUIRE(runs.first_reaching(global) == first - all.begin());
    }
  }
}

TEST_CASE("a piece that is no part of its tensor is refused, whatever its numbers") {
  struct Row {
    GlobalIndex where;
    std::int64_t count, numel;
    bool good;
  };
  const std::int64_t large = std::int64_t{1} << 62;
  const std::vector<Row> rows{
      {{}, 12, 12, true},
      {{}, 13, 12, false},
      {{.first = 1}, 12, 12, false},
      {{.first = 12}, 0, 12, true},
      {{.first = -1}, 1, 12, false},
      {{}, -1, 12, false},
      {{.skip = 12}, 1, 12, false},
      {{.skip = kMost}, 1, 12, false},
      {{2, 3, 5, 0}, 6, 10, true},
      {{2, 3, 5, 0}, 7, 10, false},
      {{3, 3, 5, 0}, 6, 10, false},
      {{0, 3, 2, 0}, 6, 12, false},  // rows that overlap
      {{0, 3, 2, 0}, 3, 12, true},   // one row has no distance
      {{0, 0, 7, 0}, 3, 12, true},
      {{kMost, 1, kMost, 0}, 2, large, false},
      {{0, 1, kMost, 0}, 2, large, false},
      {{large - 1, large - 1, large - 1, 0}, large, large, false},
      {{0, kMost, kMost, kMost}, kMost, large, false},
      {{0, 1, large - 1, 0}, 2, large, true},
      {{}, large, large, true},
      {{.first = large - 1}, 2, large, false},
  };
  for (const auto& row : rows) {
    CAPTURE(row.where.first, row.where.row_length, row.where.row_stride, row.where.skip, row.count, row.numel);
    CHECK(placement_fault(row.where, row.count, row.numel).empty() == row.good);
  }
}

TEST_CASE("what two pieces have in common is found as ranges, in order") {
  std::mt19937 random(12);
  for (int round = 0; round < 3000; ++round) {
    const auto [a, a_count] = any_piece(random, 60);
    const auto [b, b_count] = any_piece(random, 60);
    std::vector<std::int64_t> expected, found;
    const auto in_a = elements(a, a_count), in_b = elements(b, b_count);
    std::ranges::set_intersection(in_a, in_b, std::back_inserter(expected));
    for_each_common(Runs(a, a_count), Runs(b, b_count),
                    [&](std::int64_t count, std::int64_t global, std::int64_t local_a, std::int64_t local_b) {
                      for (std::int64_t i = 0; i < count; ++i) {
                        found.push_back(global + i);
                        REQUIRE(in_a[static_cast<std::size_t>(local_a + i)] == global + i);
                        REQUIRE(in_b[static_cast<std::size_t>(local_b + i)] == global + i);
                      }
                    });
    REQUIRE(found == expected);
  }
}

TEST_CASE("looking for a few elements in a million rows takes a few steps") {
  const std::int64_t rows = std::int64_t{1} << 40;
  const Runs column({.first = 3, .row_length = 1, .row_stride = 1024}, rows);
  int found = 0;
  const auto count = [&](std::int64_t, std::int64_t, std::int64_t, std::int64_t) { ++found; };
  for_each_common(column, Runs({.first = rows * 512}, 4096), count);
  for_each_common(Runs({.first = rows * 512}, 4096), column, count);
  CHECK(found == 8);
}

TEST_CASE("pieces that have every element once are told from those that miss or repeat one") {
  std::mt19937 random(13);
  for (int round = 0; round < 1000; ++round) {
    const std::int64_t height = 1 + static_cast<std::int64_t>(random() % 8),
                       width = 1 + static_cast<std::int64_t>(random() % 8);
    std::vector<Runs> pieces;
    for (const auto& [where, count] : any_cut(random, height, width)) pieces.emplace_back(where, count);
    REQUIRE_FALSE(find_coverage_fault(pieces, height * width));
    const auto one = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(height * width));
    pieces.emplace_back(GlobalIndex{.first = one}, 1);
    const auto twice = find_coverage_fault(pieces, height * width);
    REQUIRE(twice);
    CHECK(twice->text() == "elements " + std::to_string(one) + " to " + std::to_string(one + 1) + " are there twice");
    pieces.pop_back();
    const auto missing = find_coverage_fault(pieces, height * width + 2);
    REQUIRE(missing);
    CHECK(missing->first == height * width);
    CHECK(missing->count == 2);
    CHECK_FALSE(missing->twice);
  }
  const std::vector<Runs> hole{Runs({}, 3), Runs({.first = 8}, 2)};
  CHECK(find_coverage_fault(hole, 10)->text() == "elements 3 to 8 are missing");
  CHECK(find_coverage_fault({}, 4)->text() == "elements 0 to 4 are missing");
  CHECK_FALSE(find_coverage_fault({}, 0));
}

TEST_CASE("replicas share a piece without overlap, and small pieces spread over them") {
  const auto piece = [](std::int64_t count, int replicas, int replica, const std::string& name) {
    return StatePiece{name, {count}, {}, Tensor::on_host({count}, DType::f32), replicas, replica};
  };
  for (const int replicas : {1, 2, 3, 7}) {
    for (const std::int64_t count : {0, 1, 99, 100, 101, 1000}) {
      std::int64_t next = 0;
      int writers = 0;
      for (int replica = 0; replica < replicas; ++replica) {
        const auto share = share_of(piece(count, replicas, replica, "w"), 100);
        if (share.count == 0) continue;
        CHECK(share.first == next);
        next += share.count;
        ++writers;
      }
      CHECK(next == count);
      CHECK(writers == (count == 0 ? 0 : count < 100 ? 1 : replicas));
    }
  }
  std::vector<int> written(4);
  for (int i = 0; i < 200; ++i)
    for (int replica = 0; replica < 4; ++replica)
      written[static_cast<std::size_t>(replica)] += share_of(piece(8, 4, replica, "h." + std::to_string(i))).count > 0;
  CHECK(std::ranges::min(written) > 20);
}

TEST_CASE("a piece whose numbers or elements do not fit is refused by name") {
  const auto host = [](std::int64_t count) { return Tensor::on_host({count}, DType::f32); };
  CHECK_NOTHROW(check_piece({"w", {2, 3}, {}, host(6)}));
  CHECK_THROWS_WITH(check_piece({"w", {2, 3}, {.first = 1}, host(6)}),
                    Catch::Contains("\"w\" [2, 3]") && Catch::Contains("6 elements at 1"));
  CHECK_THROWS_WITH(check_piece({"w", {2}, {}, Tensor()}), Catch::Contains("no elements"));
  CHECK_THROWS_WITH(check_piece({"w", {2}, {}, Tensor::abstract({2}, DType::f32)}), Catch::Contains("no elements"));
  CHECK_THROWS_WITH(check_piece({"w", {2}, {}, Tensor::on_host({2}, DType::bf16)}), Catch::Contains("bf16"));
  CHECK_THROWS_WITH(check_piece({"w", {2}, {}, host(2), 2, 2}), Catch::Contains("replica 2 of 2"));
}
