// A second, independent reading of the programs of all ranks: runs them with numbers that stand for formulas. What the
// optimizer makes of every parameter, or nothing when the programs do not come to an end or use what is not there.
#pragma once

#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime::testing {

class SymbolicRun {
 public:
  // Whole parameters only. `seed`: which rank goes on next.
  SymbolicRun(const std::vector<Program>& programs, unsigned seed)
      : programs_(programs), ranks_(programs.size()), random_(seed) {
    for (std::size_t r = 0; r < programs.size(); ++r) ranks_[r].transfers.resize(programs[r].transfers.size());
  }

  // By rank and number of the parameter in the model; -1: the losses.
  using Outcome = std::map<std::pair<std::size_t, int>, std::size_t>;
  std::optional<Outcome> run() {
    int quiet = 0;
    while (!failed_ && quiet < 400) {
      const std::size_t r = random_() % ranks_.size();
      auto& rank = ranks_[r];
      const bool moved = rank.next < programs_[r].step.size() && step(r, programs_[r].step[rank.next]);
      if (moved) {
        ++rank.next;
        rank.arrived = false;
      }
      quiet = moved ? 0 : quiet + 1;
    }
    Outcome outcome;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      auto& rank = ranks_[r];
      const auto& program = programs_[r];
      if (failed_ || rank.next < program.step.size() || !rank.optimized) return std::nullopt;
      for (int p = 0; p < static_cast<int>(program.model.parameters.size()); ++p)
        outcome[{r, program.parameter_numbers[static_cast<std::size_t>(p)]}] = rank.values[p];
      outcome[{r, -1}] = rank.metrics;
    }
    return outcome;
  }

 private:
  static std::size_t mix(std::size_t a, std::size_t b, std::size_t c = 7) {
    std::uint64_t x = a * 0x9E3779B97F4A7C15U ^ (b + 0x7F4A7C15U) * 0xBF58476D1CE4E5B9U ^ (c + 3) * 0x94D049BB133111EBU;
    x ^= x >> 29U;
    return x * 0xD6E8FEB86659FD93U ^ x >> 32U;
  }

  struct Transfer {
    std::size_t content = 0;
    int number = -1;  // of the message
    bool sends = false;
  };
  struct Saved {  // for backward
    int transfer = -1;
    std::size_t input = 0;
    bool whole = false;
  };
  struct Rank {
    std::size_t next = 0;
    bool arrived = false, clipped = false, optimized = false;
    std::map<std::pair<int, int>, std::size_t> flying;  // by stage and micro-batch
    std::map<std::pair<int, int>, Saved> saved;         // by unit and micro-batch
    std::map<int, std::pair<int, std::size_t>> slots;   // by parameter: micro-batch, formula
    std::map<int, std::size_t> buckets, values;         // by parameter
    std::map<int, bool> summed;                         // by buffer: waited for
    std::size_t metrics = 0;
    std::vector<Transfer> transfers;
  };
  struct Message {
    int transfer = -1;  // of the sender
    bool taken = false;
  };
  struct Sum {
    std::size_t arrived = 0, total = 0;
    std::map<int, std::size_t> by_parameter;
  };

  std::size_t peer(std::size_t r, const Action& a) const {
    const auto& axes = programs_[r].config.axes;
    return static_cast<std::size_t>(static_cast<int>(r) +
                                    (a.peer - axes.pp_rank(static_cast<int>(r))) * axes.data_ranks() * axes.tp);
  }
  std::vector<Message>& messages(std::size_t from, std::size_t to) { return messages_[{from, to}]; }
  bool fail() {
    failed_ = true;
    return false;
  }

  bool step(std::size_t r, const Action& a) {
    auto& rank = ranks_[r];
    const auto& program = programs_[r];
    if (rank.optimized && a.payload != Payload::tied_value) return fail();
    switch (a.kind) {
      case ActionKind::forward:
        return forward(rank, program, a);
      case ActionKind::recompute: {
        const auto found = rank.saved.find({a.unit, a.micro_batch});
        if (found == rank.saved.end() || found->second.whole) return fail();
        found->second.whole = true;
        return true;
      }
      case ActionKind::loss: {
        const auto found = rank.flying.find({static_cast<int>(program.stages.size()) - 1, a.micro_batch});
        if (found == rank.flying.end()) return fail();
        rank.metrics = mix(rank.metrics, found->second);
        found->second = 1;
        return true;
      }
      case ActionKind::backward:
        return backward(rank, program, a);
      case ActionKind::accumulate:
        for (const int p : program.model.units[static_cast<std::size_t>(a.unit)].parameters) {
          if (program.model.first_use(p) != a.unit || !program.owns(p)) continue;
          if (rank.slots[p].first != a.micro_batch) return fail();
          rank.buckets[p] = mix(rank.buckets[p], rank.slots[p].second, 11);
        }
        return true;
      case ActionKind::reduce:
        return reduce(r, a);
      case ActionKind::wait:
        return a.payload == Payload::none ? rank.summed.contains(a.buffer) && (rank.summed[a.buffer] = true)
                                          : wait(r, a);
      case ActionKind::send:
        return send(r, a);
      case ActionKind::recv:
        rank.transfers[static_cast<std::size_t>(a.buffer)] = {0, received_[{peer(r, a), r}]++, false};
        return true;
      case ActionKind::take: {
        const auto content = rank.transfers[static_cast<std::size_t>(a.buffer)].content;
        open(rank, program, a.tied, a.micro_batch);
        rank.slots[a.tied].second = content;
        if (a.micro_batch == 0) rank.buckets[a.tied] = content;
        return true;
      }
      case ActionKind::clip:
        rank.clipped = true;
        return true;
      case ActionKind::optimize:
        for (int b = 0; b <= program.metrics_buffer(); ++b) {
          if (!rank.summed[b]) return fail();
        }
        if (!rank.clipped) return fail();
        for (auto& [p, gradient] : rank.buckets) rank.values[p] = mix(5, gradient);
        return rank.optimized = true;
      default:
        return fail();
    }
  }

  bool forward(Rank& rank, const Program& program, const Action& a) {
    const int stage = program.stage_of(a.unit);
    auto& flying = rank.flying[{stage, a.micro_batch}];
    if (a.buffer >= 0) flying = rank.transfers[static_cast<std::size_t>(a.buffer)].content;
    const auto [place, fresh] =
        rank.saved.emplace(std::pair(a.unit, a.micro_batch), Saved{a.buffer, flying, !program.recomputes(a.unit)});
    if (!fresh) return fail();
    flying = mix(flying, number(program, a.unit), static_cast<std::size_t>(a.micro_batch));
    return true;
  }

  static std::size_t number(const Program& program, int unit) {
    return static_cast<std::size_t>(program.unit_numbers[static_cast<std::size_t>(unit)]);
  }

  bool backward(Rank& rank, const Program& program, const Action& a) {
    const auto found = rank.saved.find({a.unit, a.micro_batch});
    if (found == rank.saved.end() || !found->second.whole) return fail();
    const auto& saved = found->second;
    // What forward started from lies in the transfer itself.
    const auto input =
        saved.transfer < 0 ? saved.input : rank.transfers[static_cast<std::size_t>(saved.transfer)].content;
    auto& flying = rank.flying[{program.stage_of(a.unit), a.micro_batch}];
    if (a.buffer >= 0) flying = rank.transfers[static_cast<std::size_t>(a.buffer)].content;
    for (const int p : program.model.units[static_cast<std::size_t>(a.unit)].parameters) {
      open(rank, program, p, a.micro_batch);
      rank.slots[p].second = mix(rank.slots[p].second, mix(input, flying, number(program, a.unit)), 13);
      if (a.micro_batch == 0 && program.owns(p)) rank.buckets[p] = rank.slots[p].second;
    }
    flying = mix(flying, input, number(program, a.unit) + 100);
    rank.saved.erase(found);
    return true;
  }

  static void open(Rank& rank, const Program& program, int p, int micro_batch) {
    const auto found = rank.slots.find(p);
    if (found != rank.slots.end() && found->second.first == micro_batch) return;
    rank.slots[p] = {micro_batch, 0};
    if (micro_batch == 0 && program.owns(p)) rank.buckets[p] = 0;
  }

  bool reduce(std::size_t r, const Action& a) {
    auto& rank = ranks_[r];
    const auto& program = programs_[r];
    const bool metrics = a.buffer == program.metrics_buffer();
    const auto& axes = program.config.axes;
    const int group = metrics ? -1 : axes.pp_rank(static_cast<int>(r));
    auto& calls = calls_[{group, r}];
    auto& sum = sums_[{group, calls}];
    const auto& slots = program.buffers[static_cast<std::size_t>(a.buffer)].slots;
    if (!rank.arrived) {
      rank.arrived = true;
      ++sum.arrived;
      sum.total += mix(rank.metrics, r);
      const auto place = static_cast<std::size_t>(axes.data_rank(static_cast<int>(r)));
      for (const auto& slot : slots) sum.by_parameter[slot.parameter] += mix(rank.buckets[slot.parameter], place);
    }
    if (sum.arrived < static_cast<std::size_t>(metrics ? axes.world_size() : axes.data_ranks())) return false;
    if (metrics) rank.metrics = sum.total;
    for (const auto& slot : slots) rank.buckets[slot.parameter] = sum.by_parameter[slot.parameter];
    if (rank.summed.contains(a.buffer)) return fail();
    rank.summed[a.buffer] = false;
    ++calls;
    return true;
  }

  bool send(std::size_t r, const Action& a) {
    auto& rank = ranks_[r];
    auto& sent = messages(r, peer(r, a));
    if (sent.size() >= 16 && !sent[sent.size() - 16].taken) return false;
    auto& transfer = rank.transfers[static_cast<std::size_t>(a.buffer)];
    transfer.number = static_cast<int>(sent.size());
    transfer.sends = true;
    if (a.payload == Payload::tied_value) {
      transfer.content = rank.values[a.tied];
    } else if (a.payload == Payload::tied_gradient) {
      transfer.content = rank.slots[a.tied].second;
    } else {
      const auto found = rank.flying.find({programs_[r].stage_of(a.unit), a.micro_batch});
      if (found == rank.flying.end()) return fail();
      transfer.content = found->second;
      rank.flying.erase(found);
    }
    sent.push_back({a.buffer, false});
    return true;
  }

  bool wait(std::size_t r, const Action& a) {
    auto& rank = ranks_[r];
    auto& transfer = rank.transfers[static_cast<std::size_t>(a.buffer)];
    if (transfer.number < 0) return fail();
    const auto number = static_cast<std::size_t>(transfer.number);
    const auto other = peer(r, a);
    if (transfer.sends) return messages(r, other)[number].taken;
    auto& sent = messages(other, r);
    if (number >= sent.size()) return false;
    if (sent[number].taken) return fail();
    sent[number].taken = true;
    transfer.content = ranks_[other].transfers[static_cast<std::size_t>(sent[number].transfer)].content;
    if (a.payload == Payload::tied_value) rank.values[a.tied] = transfer.content;
    return true;
  }

  const std::vector<Program>& programs_;
  std::vector<Rank> ranks_;
  std::mt19937 random_;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<Message>> messages_;
  std::map<std::pair<std::size_t, std::size_t>, int> received_;
  std::map<std::pair<int, std::size_t>, int> calls_;
  std::map<std::pair<int, int>, Sum> sums_;
  bool failed_ = false;
};

}  // namespace dtrun::runtime::testing
