#include "worker_runtime/parallel/stage_transfers.hpp"

#include <algorithm>
#include <set>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

// Sends of one payload to one peer that may be on their way: of 16 that comm/ allows.
constexpr int kActivationsOnTheirWay = 4, kTiedOnTheirWay = 15;

// The owner of a tied parameter takes its gradient with the first gradient of the micro-batch that reaches it, pp - 1
// runs after it was sent. A stage that could not go on sending until then would hold up all others.
std::size_t on_their_way(Payload payload, int pp) {
  const bool tied = payload == Payload::tied_gradient || payload == Payload::tied_value;
  return static_cast<std::size_t>(tied ? std::clamp(pp - 1, 2, kTiedOnTheirWay) : kActivationsOnTheirWay);
}

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

StageTransfers::StageTransfers(Program& program)
    : program_(program), pp_rank_(program.config.axes.pp_rank(program.rank)) {
  std::set<int> peers;
  const int pp = program.config.axes.pp, stages = static_cast<int>(program.all_stages.size());
  for (const auto& stage : program.stages) {
    if (stage.index > 0) peers.insert((stage.index - 1) % pp);
    if (stage.index + 1 < stages) peers.insert((stage.index + 1) % pp);
  }
  for (const auto& tie : program.ties) peers.insert(tie.peer);
  for (const int peer : peers) expect_from(peer);
}

int StageTransfers::own_stage(int index) const {
  const auto stage = std::ranges::find(program_.stages, index, &Stage::index);
  return stage == program_.stages.end() ? -1 : static_cast<int>(stage - program_.stages.begin());
}

Action StageTransfers::tied(ActionKind kind, Payload payload, const Tie& tie, int micro_batch) const {
  return {kind, tie.unit, micro_batch, tie.peer, -1, 0, payload, tie.parameter};
}

int StageTransfers::last_use(int parameter) const {
  int last = program_.model.first_use(parameter);
  for (int unit = last; unit < static_cast<int>(program_.model.units.size()); ++unit) {
    const auto& used = program_.model.units[at(unit)].parameters;
    if (std::ranges::find(used, parameter) != used.end()) last = unit;
  }
  return last;
}

// What `peer` sends to this rank, in its order: as after_forward() and after_backward() write it there.
void StageTransfers::expect_from(int peer) {
  auto& expected = expected_[peer];
  const int pp = program_.config.axes.pp;
  const bool tied_by_micro_batch = !program_.config.splits_parameters();
  for (const auto& run : schedule_of(program_.config, peer)) {
    const int index = run.stage * pp + peer, m = run.micro_batch;
    if (!run.backward) {
      const int next = own_stage(index + 1);
      if (next < 0) continue;
      const Action action{ActionKind::recv, program_.stages[at(next)].first, m, peer, -1, 0, Payload::activation};
      expected.push_back({{Payload::activation, index + 1, m}, action});
      continue;
    }
    for (const auto& tie : program_.ties) {
      if (!tied_by_micro_batch || !tie.owner || tie.copy_stage != index) continue;
      expected.push_back(
          {{Payload::tied_gradient, tie.parameter, m}, tied(ActionKind::recv, Payload::tied_gradient, tie, m)});
    }
    const int previous = own_stage(index - 1);
    if (previous < 0) continue;
    const Action action{ActionKind::recv, program_.stages[at(previous)].end - 1, m, peer, -1, 0, Payload::gradient};
    expected.push_back({{Payload::gradient, index, m}, action});
  }
}

int StageTransfers::acquire(const Action& action) {
  const bool outgoing = action.kind == ActionKind::send;
  const auto numel = program_.numel_of(action);
  auto& free = free_[{action.payload, outgoing, numel}];
  if (free.empty()) {
    program_.transfers.push_back({action.payload, outgoing, numel});
    return static_cast<int>(program_.transfers.size()) - 1;
  }
  const int transfer = free.back();
  free.pop_back();
  return transfer;
}

void StageTransfers::release(int transfer) {
  const auto& buffer = program_.transfers[at(transfer)];
  free_[{buffer.payload, buffer.outgoing, buffer.numel}].push_back(transfer);
}

void StageTransfers::wait_sent(const Action& sent, std::vector<Action>& out) {
  Action wait = sent;
  wait.kind = ActionKind::wait;
  out.push_back(wait);
  release(sent.buffer);
}

void StageTransfers::send(Action action, std::vector<Action>& out) {
  auto& sent = sent_[{action.peer, action.payload}];
  if (sent.size() >= on_their_way(action.payload, program_.config.axes.pp)) {
    wait_sent(sent.front(), out);
    sent.pop_front();
  }
  action.buffer = acquire(action);
  out.push_back(action);
  sent.push_back(action);
}

// The next one of `peer`.
void StageTransfers::post(int peer, std::vector<Action>& out) {
  auto& expected = expected_.at(peer);
  DTRUN_ASSERT(!expected.empty());
  auto [key, action] = expected.front();
  expected.pop_front();
  action.buffer = acquire(action);
  out.push_back(action);
  posted_.emplace(key, Posted{action, ++messages_});
}

int StageTransfers::take(const Key& key, int peer, std::vector<Action>& out) {
  while (!posted_.contains(key)) post(peer, out);
  auto [wait, number] = posted_.extract(key).mapped();
  wait.kind = ActionKind::wait;
  out.push_back(wait);
  // What the same peer sent before it has come too. Held here, it is not in the way of later messages.
  for (auto at_posted = posted_.begin(); at_posted != posted_.end();) {
    auto [earlier, earlier_number] = at_posted->second;
    if (earlier.payload != Payload::tied_gradient || earlier.peer != peer || earlier_number > number ||
        program_.config.splits_parameters()) {
      ++at_posted;
      continue;
    }
    earlier.kind = ActionKind::wait;
    out.push_back(earlier);
    earlier.kind = ActionKind::take;
    tied_.emplace(std::tuple(earlier.tied, earlier.micro_batch), earlier);
    at_posted = posted_.erase(at_posted);
  }
  return wait.buffer;
}

int StageTransfers::begin(const StageRun& run, std::vector<Action>& out) {
  const int pp = program_.config.axes.pp, index = program_.stages[at(run.stage)].index;
  if (run.backward ? program_.ends(run.stage) : program_.starts(run.stage)) return -1;
  const Key key = run.backward ? Key{Payload::gradient, index + 1, run.micro_batch}
                               : Key{Payload::activation, index, run.micro_batch};
  const int peer = (run.backward ? index + 1 : index - 1) % pp;
  const int transfer = take(key, peer, out);
  (run.backward ? gradients_ : activations_)[{run.stage, run.micro_batch}] = transfer;
  if (run.backward && !program_.config.splits_parameters()) hold_tied(run.micro_batch, out);
  return transfer;
}

// It was sent before the gradient was.
void StageTransfers::hold_tied(int micro_batch, std::vector<Action>& out) {
  for (const auto& tie : program_.ties) {
    const auto place = std::tuple(tie.parameter, micro_batch);
    if (!tie.owner || tied_.contains(place)) continue;
    const Key key{Payload::tied_gradient, tie.parameter, micro_batch};
    if (!posted_.contains(key) && !is_expected(key, tie.peer)) continue;  // taken in another stage's run
    auto held = tied(ActionKind::take, Payload::tied_gradient, tie, micro_batch);
    held.buffer = take(key, tie.peer, out);
    tied_.emplace(place, held);
  }
}

bool StageTransfers::is_expected(const Key& key, int peer) const {
  return std::ranges::find(expected_.at(peer), key, &Expected::key) != expected_.at(peer).end();
}

void StageTransfers::after_forward(const StageRun& run, std::vector<Action>& out) {
  if (program_.ends(run.stage)) return;
  const auto& stage = program_.stages[at(run.stage)];
  const int peer = (stage.index + 1) % program_.config.axes.pp;
  send({ActionKind::send, stage.end - 1, run.micro_batch, peer, -1, 0, Payload::activation}, out);
}

void StageTransfers::before_backward(int unit, int micro_batch, std::vector<Action>& out) {
  if (program_.config.splits_parameters()) return;
  for (const auto& tie : program_.ties) {
    if (!tie.owner || unit != last_use(tie.parameter)) continue;
    out.push_back(tied_.extract({tie.parameter, micro_batch}).mapped());
    release(out.back().buffer);
  }
}

void StageTransfers::after_backward(int unit, int micro_batch, std::vector<Action>& out) {
  const int number = program_.stage_of(unit);
  const auto& stage = program_.stages[at(number)];
  if (unit == stage.end - 1 && !program_.ends(number)) release(gradients_.extract({number, micro_batch}).mapped());
  if (!program_.config.splits_parameters()) {
    for (const auto& tie : program_.ties) {
      if (!tie.owner && tie.unit == unit) send(tied(ActionKind::send, Payload::tied_gradient, tie, micro_batch), out);
    }
  }
  if (unit != stage.first || program_.starts(number)) return;
  release(activations_.extract({number, micro_batch}).mapped());
  const int peer = (stage.index - 1) % program_.config.axes.pp;
  send({ActionKind::send, unit, micro_batch, peer, -1, 0, Payload::gradient}, out);
}

void StageTransfers::end_runs(std::vector<Action>& out) {
  for (auto& [peer, messages] : sent_) {
    for (const auto& sent : messages) wait_sent(sent, out);
    messages.clear();
  }
  if (program_.config.splits_parameters()) exchange(Payload::tied_gradient, false, out);
}

void StageTransfers::values(std::vector<Action>& out) { exchange(Payload::tied_value, true, out); }

// Every tie once.
void StageTransfers::exchange(Payload payload, bool owners_send, std::vector<Action>& out) {
  std::vector<Action> waits;
  for (const auto& tie : program_.ties) {
    Action action = tied(tie.owner == owners_send ? ActionKind::send : ActionKind::recv, payload, tie, -1);
    action.buffer = acquire(action);
    out.push_back(action);
    waits.push_back(action);
    waits.back().kind = ActionKind::wait;
  }
  for (const auto& wait : waits) {
    out.push_back(wait);
    if (payload == Payload::tied_gradient && program_.owns(wait.tied)) {
      out.push_back(wait);
      out.back().kind = ActionKind::take;
    }
    release(wait.buffer);
  }
}

}  // namespace dtrun::runtime
