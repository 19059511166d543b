#include "worker_runtime/worker/guards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "worker_runtime/checkpoint/hash.hpp"
#include "worker_runtime/comm/gather_texts.hpp"
#include "worker_runtime/comm/gather_values.hpp"

namespace dtrun::runtime {
namespace {

std::string_view word_for(double value) { return std::isnan(value) ? "nan" : "infinite"; }

// Of the gradients that this rank has, the last one in the order of the model that is not finite; -1: none.
int last_not_finite(const StepExecutor& executor) {
  const auto& parameters = executor.model().parameters();
  int last = -1;
  for (const auto& piece : executor.optimizer_pieces()) {
    const Tensor gradient = piece.grad.to_host();
    if (std::ranges::all_of(gradient.span<float>(), [](float x) { return std::isfinite(x); })) continue;
    const auto at = std::ranges::find(parameters, piece.name, [](const Parameter* p) { return p->name(); });
    last = std::max(last, static_cast<int>(at - parameters.begin()));
  }
  return last;
}

std::uint64_t key_of(const StatePiece& piece) {
  const auto& at = piece.where;
  const auto text = fmt::format("{} {} {} {} {} {}", piece.name, at.first, at.row_length, at.row_stride, at.skip,
                                piece.tensor.numel());
  return hash_bytes(std::as_bytes(std::span(text)));
}

// A tensor, or a part of one, and the ranks that hold it by the hash of what they hold.
struct Replicas {
  std::string name;
  std::map<std::uint64_t, std::vector<int>> ranks{};
};

// In the order in which the first rank that has one tells it.
std::vector<Replicas> by_tensor(const std::vector<std::string>& told) {
  std::vector<Replicas> result;
  std::map<std::uint64_t, std::size_t> place;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    std::istringstream lines(told[rank]);
    std::uint64_t key = 0, hash = 0;
    std::string name;
    while (lines >> key >> hash >> name) {
      const auto [at, is_new] = place.emplace(key, result.size());
      if (is_new) result.push_back({name});
      result[at->second].ranks[hash].push_back(static_cast<int>(rank));
    }
  }
  return result;
}

struct Difference {
  std::string text;
  std::vector<int> wrong{};  // empty when it cannot be told
};

// "rank 2 holds another wte.weight than ranks 0, 1 and 3 since a step after 200: memory or a kernel of that rank is
// wrong".
Difference difference_in(const Replicas& tensor, std::int64_t equal_after) {
  const auto& most = *std::ranges::max_element(tensor.ranks, {}, [](const auto& held) { return held.second.size(); });
  std::vector<int> all, others;
  for (const auto& [hash, ranks] : tensor.ranks) {
    all.insert(all.end(), ranks.begin(), ranks.end());
    if (hash != most.first) others.insert(others.end(), ranks.begin(), ranks.end());
  }
  std::ranges::sort(all);
  std::ranges::sort(others);
  const auto since = fmt::format("since a step after {}", equal_after);
  if (most.second.size() <= others.size())
    return {fmt::format("{} do not hold the same {} {}: memory or a kernel of one of them is wrong", ranks_text(all),
                        tensor.name, since)};
  return {fmt::format("{} {} another {} than {} {}: memory or a kernel of {} is wrong", ranks_text(others),
                      others.size() == 1 ? "holds" : "hold", tensor.name, ranks_text(most.second), since,
                      others.size() == 1 ? "that rank" : "those ranks"),
          others};
}

}  // namespace

std::string ranks_text(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

std::string where_not_finite(ProcessGroup& group, const StepExecutor& executor, const StepResult& result) {
  struct Finding {
    double loss;
    std::int64_t parameter;
  };
  group.set_action("looking for what is not finite");
  const auto findings = gather_values(group, Finding{result.own_loss, last_not_finite(executor)});
  std::vector<int> with_loss, with_gradient;
  const auto nearest = std::ranges::max(findings, {}, &Finding::parameter).parameter;
  for (std::size_t rank = 0; rank < findings.size(); ++rank) {
    if (!std::isfinite(findings[rank].loss)) with_loss.push_back(static_cast<int>(rank));
    if (findings[rank].parameter == nearest) with_gradient.push_back(static_cast<int>(rank));
  }
  if (!std::isfinite(result.loss)) {
    return fmt::format("the loss is {}{}", word_for(result.loss),
                       with_loss.empty() ? "" : fmt::format(", that of {}", ranks_text(with_loss)));
  }
  auto text = fmt::format("the gradient norm is {}", word_for(result.grad_norm));
  if (nearest < 0) return text;
  const auto summed = executor.program().config.axes.data_ranks();
  return text + fmt::format("; nearest to the loss: the gradient of {} on {}{}",
                            executor.model().parameters()[static_cast<std::size_t>(nearest)]->name(),
                            ranks_text(with_gradient),
                            summed > 1 ? fmt::format(", a sum over {} ranks with finite losses", summed) : "");
}

ReplicaCheck::ReplicaCheck(ProcessGroup& group, std::span<const StatePiece> state, std::int64_t start)
    : group_(group), equal_after_(start) {
  int fewest = 0;
  for (const auto& piece : state) {
    if (piece.replicas > 1 && (fewest == 0 || piece.replicas < fewest)) fewest = piece.replicas;
  }
  for (const auto& piece : state) {
    if (piece.replicas > 1) shared_[piece.replicas == fewest ? 0 : 1].push_back({piece, key_of(piece)});
  }
}

std::array<ReplicaCheck::Holding, 2> ReplicaCheck::holdings() const {
  std::array<Holding, 2> result;
  for (std::size_t i = 0; i < shared_.size(); ++i) {
    if (shared_[i].empty()) continue;
    ByteHash keys;
    TensorHash values;
    for (const auto& [piece, key] : shared_[i]) {
      keys.add(std::as_bytes(std::span(&key, 1)));
      values.add(piece.name, piece.tensor);
    }
    result[i] = {keys.value(), values.value()};
  }
  return result;
}

void ReplicaCheck::require_equal(std::int64_t step) {
  if (step == equal_after_) return;
  group_.set_action(fmt::format("step {}, comparing replicas", step));
  std::map<std::uint64_t, std::uint64_t> hash_of;
  bool equal = true;
  for (const auto& of_rank : gather_values(group_, holdings())) {
    for (const auto& [key, hash] : of_rank) equal = hash_of.emplace(key, hash).first->second == hash && equal;
  }
  if (!equal) throw_difference(step);
  equal_after_ = step;
}

void ReplicaCheck::throw_difference(std::int64_t step) const {
  std::string own;
  for (const auto& shared : shared_) {
    for (const auto& [piece, key] : shared) {
      own += fmt::format("{} {} {}\n", key, hash_tensors({{piece.name, piece.tensor}}), piece.name);
    }
  }
  auto tensors = by_tensor(gather_texts(group_, own));
  std::erase_if(tensors, [](const Replicas& tensor) { return tensor.ranks.size() == 1; });
  if (tensors.empty()) throw ReplicaError("train", fmt::format("step {}: replicas differ from call to call", step));
  const auto more = tensors.size() == 1 ? "" : fmt::format(" ({} tensors differ)", tensors.size());
  const auto found = difference_in(tensors.front(), equal_after_);
  throw ReplicaError("train", fmt::format("after step {}: {}{}", step, found.text, more), found.wrong);
}

}  // namespace dtrun::runtime
