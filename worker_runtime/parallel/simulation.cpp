#include "worker_runtime/parallel/simulation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "rendezvous/base/counted.hpp"
#include "worker_runtime/parallel/calls.hpp"

namespace dtrun::runtime {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

struct Message {
  std::uint32_t tag = 0;
  std::int64_t numel = 0;
  double sent = 0, taken = -1;  // times; not taken yet
  int sender_action = 0;
};

struct Pair {  // messages from one rank to another
  std::vector<Message> sent;
  int receives = 0;  // posted
};

struct Group {
  int size = 0;
  std::vector<int> arrived;  // by number of the call
  std::vector<double> time;
};

class Simulation {
 public:
  explicit Simulation(std::span<const Program> programs)
      : programs_(programs), shape_(programs.front().config.axes.shape()), ranks_(programs.size()) {
    for (std::size_t r = 0; r < programs.size(); ++r) {
      const auto& units = programs[r].model.units;
      flops_known_ =
          flops_known_ || std::ranges::any_of(units, [](const auto& unit) { return unit.forward_flops > 0; });
      for (const auto* actions : {&programs[r].setup, &programs[r].step}) {
        for (const auto& action : *actions) {
          ranks_[r].actions.push_back(&action);
          ranks_[r].groups.push_back(number_of_group(static_cast<int>(r), action));
        }
      }
      ranks_[r].number_of_transfer.assign(programs[r].transfers.size(), -1);
    }
  }

  SimulationResult run() {
    for (bool moved = true; moved && result_.problems.empty();) {
      moved = false;
      for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
        auto& rank = ranks_[at(r)];
        while (rank.next < rank.actions.size() && result_.problems.empty() && step(r)) {
          ++rank.next;
          rank.arrived = false;
          moved = true;
        }
      }
    }
    finish();
    return std::move(result_);
  }

 private:
  struct Rank {
    std::vector<const Action*> actions;
    std::vector<int> groups;  // by action: of its collective, or -1
    std::size_t next = 0;
    bool arrived = false;                 // at the collective that it waits in
    std::map<int, int> calls;             // by group
    std::vector<int> number_of_transfer;  // of the message that uses it
    double now = 0, busy = 0;
    int in_flight = 0, peak = 0;
  };

  int number_of_group(int rank, const Action& action) {
    const auto group = group_of(programs_[at(rank)], action);
    if (!group) return -1;
    const auto [place, fresh] =
        group_numbers_.emplace(std::pair(*group, group->first(shape_, rank)), static_cast<int>(groups_.size()));
    if (fresh) groups_.push_back({group->ranks(shape_), {}, {}});
    return place->second;
  }

  int global(int rank, int peer) const {
    const auto& axes = programs_.front().config.axes;
    return rank + (peer - axes.pp_rank(rank)) * axes.data_ranks() * axes.tp;
  }

  // False: it waits.
  bool step(int r) {
    auto& rank = ranks_[at(r)];
    const auto& action = *rank.actions[rank.next];
    const auto& program = programs_[at(r)];
    if (const int group = rank.groups[rank.next]; group >= 0) {
      if (!collective(rank, group)) return false;
      if (computes(action)) compute(rank, program, action);
      return true;
    }
    switch (action.kind) {
      case ActionKind::send:
        return send(r, action);
      case ActionKind::recv:
        rank.number_of_transfer[at(action.buffer)] = pair(global(r, action.peer), r).receives++;
        return true;
      case ActionKind::wait:
        return action.payload == Payload::none || wait(r, action);
      case ActionKind::forward:
      case ActionKind::recompute:
      case ActionKind::backward:
        compute(rank, program, action);
        return true;
      default:
        return true;
    }
  }

  void compute(Rank& rank, const Program& program, const Action& action) {
    const double cost = flops_known_ ? program.model.units[at(action.unit)].forward_flops : 1;
    const double time = cost * (action.kind == ActionKind::backward ? 2 : 1);
    rank.now += time;
    rank.busy += time;
    const auto& stage = program.stages[at(program.stage_of(action.unit))];
    if (action.kind == ActionKind::forward && action.unit == stage.first)
      rank.peak = std::max(rank.peak, ++rank.in_flight);
    if (action.kind == ActionKind::backward && action.unit == stage.first) --rank.in_flight;
  }

  bool collective(Rank& rank, int number) {
    auto& group = groups_[at(number)];
    int& call = rank.calls[number];
    if (!rank.arrived) {
      rank.arrived = true;
      if (group.arrived.size() <= at(call)) {
        group.arrived.resize(at(call) + 1, 0);
        group.time.resize(at(call) + 1, 0);
      }
      ++group.arrived[at(call)];
      group.time[at(call)] = std::max(group.time[at(call)], rank.now);
    }
    if (group.arrived[at(call)] < group.size) return false;
    rank.now = std::max(rank.now, group.time[at(call)]);
    ++call;
    return true;
  }

  Pair& pair(int from, int to) { return pairs_[{from, to}]; }

  bool send(int r, const Action& action) {
    auto& rank = ranks_[at(r)];
    auto& messages = pair(r, global(r, action.peer)).sent;
    const auto number = messages.size();
    if (number >= kMessagesOnTheirWay) {
      const double taken = messages[number - kMessagesOnTheirWay].taken;
      if (taken < 0) return false;
      rank.now = std::max(rank.now, taken);
    }
    rank.number_of_transfer[at(action.buffer)] = static_cast<int>(number);
    messages.push_back({programs_[at(r)].tag_of(action), programs_[at(r)].numel_of(action), rank.now, -1,
                        static_cast<int>(rank.next)});
    return true;
  }

  bool wait(int r, const Action& action) {
    auto& rank = ranks_[at(r)];
    const auto& program = programs_[at(r)];
    const bool outgoing = program.transfers[at(action.buffer)].outgoing;
    const int other = global(r, action.peer);
    auto& messages = (outgoing ? pair(r, other) : pair(other, r)).sent;
    const int number = rank.number_of_transfer[at(action.buffer)];
    if (number < 0 || at(number) >= messages.size()) return false;
    auto& message = messages[at(number)];
    if (outgoing) {
      if (message.taken < 0) return false;
      rank.now = std::max(rank.now, message.taken);
      return true;
    }
    Action receive = action;
    receive.kind = ActionKind::recv;
    if (message.tag != program.tag_of(receive) || message.numel != program.numel_of(receive)) {
      const auto& sender = programs_[at(other)];
      result_.problems.push_back(
          fmt::format("rank {}: action {}, {}: rank {} sends something else there, action {}, {}", r, action.id,
                      program.label(action), other, ranks_[at(other)].actions[at(message.sender_action)]->id,
                      sender.label(*ranks_[at(other)].actions[at(message.sender_action)])));
      return false;
    }
    rank.now = std::max(rank.now, message.sent);
    message.taken = rank.now;
    return true;
  }

  void finish() {
    constexpr int kShown = 8;
    const bool stuck = result_.problems.empty();
    int waiting = 0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const auto& rank = ranks_[r];
      result_.time = std::max(result_.time, rank.now);
      result_.busy.push_back(rank.busy);
      result_.peak_in_flight.push_back(rank.peak);
      if (!stuck || rank.next == rank.actions.size() || ++waiting > kShown) continue;
      const auto& action = *rank.actions[rank.next];
      result_.problems.push_back(
          fmt::format("rank {}: action {}, {}: waits for ever", r, action.id, programs_[r].label(action)));
    }
    for (const auto& [ends, messages] : pairs_) {
      if (!result_.problems.empty() || static_cast<int>(messages.sent.size()) == messages.receives) continue;
      result_.problems.push_back(fmt::format("rank {} sends {} to rank {}, which receives {}", ends.first,
                                             counted(messages.sent.size(), "message"), ends.second, messages.receives));
    }
  }

  std::span<const Program> programs_;
  MeshShape shape_;
  std::vector<Rank> ranks_;
  bool flops_known_ = false;
  std::map<std::pair<CallGroup, int>, int> group_numbers_;
  std::vector<Group> groups_;
  std::map<std::pair<int, int>, Pair> pairs_;
  SimulationResult result_;
};

}  // namespace

double SimulationResult::bubble() const {
  const double all = time * static_cast<double>(busy.size());
  return all > 0 ? 1 - std::accumulate(busy.begin(), busy.end(), 0.0) / all : 0;
}

double even_bubble(const ParallelConfig& config) {
  const double others = config.axes.pp - 1;
  return others / (config.micro_batches * config.virtual_stages + others);
}

SimulationResult simulate(std::span<const Program> programs) { return Simulation(programs).run(); }

}  // namespace dtrun::runtime
