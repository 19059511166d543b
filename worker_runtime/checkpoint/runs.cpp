#include "worker_runtime/checkpoint/runs.hpp"

#include <fmt/format.h>

#include <functional>
#include <queue>
#include <tuple>
#include <vector>

namespace dtrun::runtime {

std::string placement_fault(const ops::GlobalIndex& where, std::int64_t count, std::int64_t numel) {
  if (where.first < 0 || where.row_length < 0 || where.row_stride < 0 || where.skip < 0 || count < 0)
    return "negative numbers";
  if (count == 0) return {};
  constexpr auto kBehind = "they end behind the tensor";
  // Each sum is compared before it is made: the numbers may be anything.
  if (where.skip > numel || count > numel - where.skip || where.first >= numel) return kBehind;
  const auto last = where.skip + count - 1;
  if (where.row_length == 0) return last < numel - where.first ? std::string() : kBehind;
  const auto row = last / where.row_length, column = last % where.row_length;
  if (row > 0 && where.row_stride < where.row_length) return "rows that overlap";
  if (row > 0 && row > (numel - 1 - where.first) / where.row_stride) return kBehind;
  return column < numel - where.first - row * where.row_stride ? std::string() : kBehind;
}

ops::GlobalIndex skip_elements(ops::GlobalIndex where, std::int64_t count) {
  where.skip += count;
  if (where.row_length == 0) {
    where.first += where.skip;
    where.skip = 0;
  } else {
    where.first += where.skip / where.row_length * where.row_stride;
    where.skip %= where.row_length;
  }
  return where;
}

Runs::Runs(ops::GlobalIndex where, std::int64_t count) : count_(count) {
  where = skip_elements(where, 0);
  const bool one_run =
      where.row_length == 0 || where.row_length == where.row_stride || count <= where.row_length - where.skip;
  first_ = one_run ? where.first + where.skip : where.first;
  skip_ = one_run ? 0 : where.skip;
  length_ = one_run ? count : where.row_length;
  stride_ = one_run ? count : where.row_stride;
  if (count > 0) size_ = (skip_ + count + length_ - 1) / length_;
}

Run Runs::operator[](std::int64_t number) const noexcept {
  const auto row = number * length_;
  const auto from = number == 0 ? skip_ : 0, to = std::min(length_, skip_ + count_ - row);
  return {first_ + number * stride_ + from, to - from, row + from - skip_};
}

std::int64_t Runs::first_reaching(std::int64_t global) const noexcept {
  if (size_ == 0) return 0;
  const auto beyond = global - first_ - length_;  // of row 0
  const auto number = beyond < 0 ? 0 : beyond / stride_ + 1;
  // The last row may be a part of one.
  return number >= size_ || (*this)[number].end() <= global ? std::min(number + 1, size_) : number;
}

std::string CoverageFault::text() const {
  return fmt::format("elements {} to {} are {}", first, first + count, twice ? "there twice" : "missing");
}

std::optional<CoverageFault> find_coverage_fault(std::span<const Runs> pieces, std::int64_t numel) {
  using Next = std::tuple<std::int64_t, std::size_t, std::int64_t>;  // where a run begins, its piece, its number
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  for (std::size_t piece = 0; piece < pieces.size(); ++piece)
    if (pieces[piece].size() > 0) next.emplace(pieces[piece][0].global, piece, 0);
  std::int64_t covered = 0;
  while (!next.empty()) {
    auto [begin, piece, number] = next.top();
    next.pop();
    // As long as this piece comes first, without the queue.
    for (const auto& runs = pieces[piece];;) {
      const Run run = runs[number];
      if (run.global > covered) return CoverageFault{covered, run.global - covered, false};
      if (run.global < covered) return CoverageFault{run.global, std::min(covered, run.end()) - run.global, true};
      covered = run.end();
      if (++number == runs.size()) break;
      if (const auto begin_of_next = runs[number].global; !next.empty() && begin_of_next > std::get<0>(next.top())) {
        next.emplace(begin_of_next, piece, number);
        break;
      }
    }
  }
  if (covered < numel) return CoverageFault{covered, numel - covered, false};
  return std::nullopt;
}

}  // namespace dtrun::runtime
