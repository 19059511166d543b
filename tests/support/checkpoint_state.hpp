// A made-up training state whose every element says what it is, cut over ranks in the ways that the modes cut it, and
// jobs of threads that save and load it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "rendezvous/store/hash_store.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/checkpoint/checkpoint_loader.hpp"
#include "worker_runtime/checkpoint/checkpoint_writer.hpp"

namespace dtrun::test {

using runtime::StatePiece;
using runtime::Tensor;

// replicated: dp; rows: fsdp; anywhere: ZeRO; columns: tp; stages: pp, each with two ranks of dp where there are four.
enum class Cut { replicated, rows, anywhere, columns, stages };
inline constexpr Cut kCuts[] = {Cut::replicated, Cut::rows, Cut::anywhere, Cut::columns, Cut::stages};

struct WholeTensor {
  std::string name;
  runtime::Shape shape;
};
// One is large enough for replicas to share it.
inline const std::vector<WholeTensor>& whole_tensors() {
  static const std::vector<WholeTensor> tensors{{"wte", {257, 64}},  {"h.0.w", {12, 36}}, {"h.0.b", {36}},
                                                {"h.1.w", {36, 12}}, {"scale", {}},       {"none", {0, 4}}};
  return tensors;
}
inline std::int64_t whole_elements() {
  std::int64_t sum = 0;
  for (const auto& tensor : whole_tensors()) sum += tensor.shape.numel();
  return sum;
}

// Of element `global` of tensor `name` after `step` steps.
inline float value_of(const std::string& name, std::int64_t global, std::int64_t step) {
  return static_cast<float>(global % 65536) + static_cast<float>(name.size()) * 1e5F + static_cast<float>(step) * 1e6F;
}
inline std::int64_t global_of(const runtime::ops::GlobalIndex& where, std::int64_t i) {
  if (where.row_length == 0) return where.first + where.skip + i;
  return where.first + (i + where.skip) / where.row_length * where.row_stride + (i + where.skip) % where.row_length;
}

inline StatePiece make_piece(const WholeTensor& whole, runtime::ops::GlobalIndex where, std::int64_t count,
                             int replicas = 1, int replica = 0) {
  return {whole.name, whole.shape, where, Tensor::on_host({count}, runtime::DType::f32), replicas, replica};
}

inline StatePiece cut_piece(const WholeTensor& whole, Cut cut, int rank, int world) {
  const auto numel = whole.shape.numel();
  const bool matrix = whole.shape.rank() == 2;
  const auto part_of = [&](std::int64_t all) { return std::pair(all * rank / world, all * (rank + 1) / world); };
  if (cut == Cut::rows && whole.shape.rank() > 0) {
    const auto width = matrix ? whole.shape[1] : 1;
    const auto [from, to] = part_of(whole.shape[0]);
    return make_piece(whole, {.first = from * width}, (to - from) * width);
  }
  if (cut == Cut::columns && matrix) {
    const auto [from, to] = part_of(whole.shape[1]);
    return make_piece(whole, {.first = from, .row_length = to - from, .row_stride = whole.shape[1]},
                      (to - from) * whole.shape[0]);
  }
  if (cut == Cut::anywhere) {
    const auto [from, to] = part_of(numel);
    if (!matrix) return make_piece(whole, {.first = from}, to - from);
    // As rows that the piece begins in the middle of.
    return make_piece(whole, {.row_length = whole.shape[1], .row_stride = whole.shape[1], .skip = from}, to - from);
  }
  return make_piece(whole, {}, numel, world, rank);
}

inline void fill(const std::vector<StatePiece>& pieces, std::int64_t step) {
  for (const auto& piece : pieces) {
    auto values = piece.tensor.span<float>();
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = value_of(piece.name, global_of(piece.where, static_cast<std::int64_t>(i)), step);
  }
}

// Filled as of step 0.
inline std::vector<StatePiece> cut_state(Cut cut, int rank, int world) {
  std::vector<StatePiece> pieces;
  for (std::size_t i = 0; i < whole_tensors().size(); ++i) {
    const auto& whole = whole_tensors()[i];
    if (cut == Cut::stages) {
      const int stages = std::min(world, 2), stage = rank % stages, replicas = (world - stage + stages - 1) / stages;
      if (static_cast<int>(i) % stages == stage)
        pieces.push_back(make_piece(whole, {}, whole.shape.numel(), replicas, rank / stages));
    } else {
      pieces.push_back(cut_piece(whole, cut, rank, world));
    }
  }
  fill(pieces, 0);
  return pieces;
}

inline void expect_filled(const std::vector<StatePiece>& pieces, std::int64_t step) {
  for (const auto& piece : pieces) {
    const auto values = piece.tensor.span<float>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto wanted = value_of(piece.name, global_of(piece.where, static_cast<std::int64_t>(i)), step);
      if (values[i] == wanted) continue;
      throw std::runtime_error(piece.name + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) +
                               ", expected " + std::to_string(wanted));
    }
  }
}
inline std::uint64_t bytes_of(const std::vector<StatePiece>& pieces) {
  std::uint64_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.tensor.bytes();
  return bytes;
}

// Every rank as a thread; throws what a rank threw.
inline void run_job(int world, const RankFunction& function) {
  for (const auto& error : run_ranks(world, function)) expect(error.empty(), "no error of a rank: " + error);
}

using Outcomes = std::vector<runtime::SaveOutcome>;
using Change = std::function<void(int rank, runtime::CheckpointOptions&, std::vector<StatePiece>&)>;

// Saves one step with `world` threads; the outcome of each.
inline Outcomes save_job(const std::filesystem::path& directory, Cut cut, int world, std::int64_t step,
                         const Change& change = {}) {
  const auto store = std::make_shared<rendezvous::HashStore>();
  Outcomes outcomes(static_cast<std::size_t>(world));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      runtime::CheckpointOptions options{.directory = directory, .rank = rank, .world = world, .store = store};
      options.timeout = std::chrono::seconds(20);
      auto pieces = cut_state(cut, rank, world);
      fill(pieces, step);
      if (change) change(rank, options, pieces);
      runtime::CheckpointWriter writer(options);
      writer.save({.step = step, .run = R"({"seed":7,"a":[1,2]})"}, pieces);
      fill(pieces, step + 1000);  // the run goes on
      outcomes[static_cast<std::size_t>(rank)] = writer.wait().at(0);
    });
  }
  for (auto& rank : ranks) rank.join();
  return outcomes;
}
inline std::string errors_of(const Outcomes& outcomes) {
  std::string text;
  for (const auto& outcome : outcomes) text += outcome.error + (outcome.error.empty() ? "" : "\n");
  return text;
}
// Throws when it was not saved.
inline void save_well(const std::filesystem::path& directory, Cut cut, int world, std::int64_t step) {
  const auto errors = errors_of(save_job(directory, cut, world, step));
  expect(errors.empty(), "no error: " + errors);
}

// The answer of rank 0; throws when another one has another.
inline runtime::CheckpointChoice choose_job(const std::filesystem::path& directory, int world) {
  std::vector<runtime::CheckpointChoice> choices(static_cast<std::size_t>(world));
  run_job(world, [&](runtime::ProcessGroup& group) {
    choices[static_cast<std::size_t>(group.rank())] = choose_checkpoint(directory, group);
  });
  for (const auto& choice : choices) {
    expect(choice.path == choices[0].path && choice.passed_over == choices[0].passed_over &&
               choice.meta.step == choices[0].meta.step && choice.meta.run == choices[0].meta.run,
           "the same answer on every rank");
  }
  return choices[0];
}

}  // namespace dtrun::test
