#include "rendezvous/static/static_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::rendezvous {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr auto kRoles = "torchelastic/role_info/";
constexpr auto kRanks = "torchelastic/assigned_ranks/";
constexpr auto kMembers = "torchelastic/agent/terminal_state/num_members";
constexpr auto kLastMember = "torchelastic/agent/terminal_state/last_member";
constexpr auto kBeat = "dtrun/beat/";
constexpr auto kFailed = "dtrun/failed";

constexpr auto kAnswerTime = 60s;  // of a call that needs nobody else
constexpr auto kSlice = 500ms;     // how late other news than the awaited may be
constexpr auto kTellTime = 500ms;
constexpr int kInfrastructure = 75;
constexpr auto kTheEnd = "every node had ended well";

long long seconds(Clock::duration time) { return std::chrono::duration_cast<std::chrono::seconds>(time).count(); }

}  // namespace

std::variant<StaticPlace, StaticFailure> StaticSession::join(const Endpoint& store, std::string_view remark) {
  begin_ = shown_ = Clock::now();
  try {
    connect(store);
    return meet(remark);
  } catch (const Error& error) {
    // What is not the store's was said about another node, or is the end of the join budget.
    if (job_.node == 0 || error.area() != "store") return StaticFailure{kInfrastructure, error.what()};
    if (store_) return node_0_gone("this node had its ranks", error);
    return StaticFailure{kInfrastructure, fmt::format("node 0, at {}, could not be reached: {}",
                                                      job_.endpoint.to_string(), error.what())};
  }
}

StaticFailure StaticSession::node_0_gone(std::string_view before, const std::exception& error) {
  gone_ = {kInfrastructure,
           fmt::format("node 0, at {}, was gone before {}: {}", job_.endpoint.to_string(), before, error.what())};
  return *gone_;
}

StaticPlace StaticSession::meet(std::string_view remark) {
  store_->count_in();
  if (job_.node == 0) await_count(remark);
  count_beat();
  if (job_.identical) {
    const std::vector<RoleInfo> all(static_cast<std::size_t>(job_.nodes), {"", job_.self.slots});
    return assign_places(all)[static_cast<std::size_t>(job_.node)];
  }
  store_->set(numbered(kRoles, job_.node), write_role_info(job_.node, job_.self));
  if (job_.node == 0) {
    std::vector<std::string> keys;
    for (int node = 0; node < job_.nodes; ++node) keys.push_back(numbered(kRoles, node));
    const auto missing = [&] {
      int node = 0;
      while (node < job_.nodes && store_->check({&keys[static_cast<std::size_t>(node)], 1})) ++node;
      return fmt::format("no node with --node-rank={} is here", node);
    };
    await_keys(keys, missing, missing);
    const auto texts = store_->multi_get(keys, kAnswerTime);
    std::vector<RoleInfo> roles;
    for (int node = 0; node < job_.nodes; ++node)
      roles.push_back(read_role_info(node, texts[static_cast<std::size_t>(node)]));
    std::vector<std::pair<std::string, std::string>> ranks;
    for (const auto& place : assign_places(roles)) ranks.emplace_back(numbered(kRanks, place.node), write_place(place));
    store_->multi_set(ranks);
  }
  const auto own = numbered(kRanks, job_.node);
  const auto count = [&] { return std::min<std::int64_t>(store_->workers_here(), job_.nodes); };
  await_keys(
      {own}, [&] { return fmt::format("{} of {} are here", count(), job_.nodes); },
      [&] {
        const auto here = count();
        return here < job_.nodes ? fmt::format("only {} of {} came", here, counted(job_.nodes, "node"))
                                 : std::string("node 0 gave this node no ranks");
      });
  return read_place(job_.node, job_.nodes, store_->get(own, kAnswerTime));
}

void StaticSession::connect(const Endpoint& store) {
  store_at_ = store;
  TcpStoreOptions options;
  options.host = store.host;
  options.port = store.port;
  options.timeout = job_.join_timeout;
  std::string problem;
  try {
    auto made = std::make_unique<TcpStore>(options, [&](const std::string& why) {
      problem = why;
      show("node 0 is not there: " + why);
      return !cancelled_;
    });
    made->set_timeout(kAnswerTime);
    const std::lock_guard lock(mutex_);
    store_ = std::move(made);
  } catch (const TimeoutError&) {
    too_late("node 0 was not there", ": " + problem);
  }
  if (cancelled_) store_->interrupt();
}

// As torchrun's node 0: a node is here once it has counted itself in.
void StaticSession::await_count(std::string_view remark) {
  for (auto wait = 5ms;; wait = std::min(wait * 2, std::chrono::milliseconds(50))) {
    const auto count = store_->workers_here();
    if (count >= job_.nodes) return;
    if (Clock::now() - begin_ >= job_.join_timeout)
      too_late(fmt::format("only {} of {} came", count, counted(job_.nodes, "node")));
    show(fmt::format("{} of {} are here{}", count, job_.nodes, remark));
    pause(wait);
  }
}

void StaticSession::await_keys(const std::vector<std::string>& keys, const std::function<std::string()>& missing,
                               const std::function<std::string()>& at_the_end) {
  for (;;) {
    const auto left = begin_ + job_.join_timeout - Clock::now();
    const auto slice = std::clamp<Clock::duration>(left, 1ms, job_.status_every);
    try {
      return store_->wait(keys, std::chrono::ceil<std::chrono::milliseconds>(slice));
    } catch (const TimeoutError&) {
      if (left <= slice) too_late(at_the_end());
      show(missing(), true);
    }
  }
}

void StaticSession::count_beat() { store_->add(numbered(kBeat, job_.node), 1); }

std::optional<StaticFailure> StaticSession::beat() {
  if (gone_) return gone_;
  try {
    count_beat();
    return std::nullopt;
  } catch (const RendezvousError& error) {
    return node_0_gone(kTheEnd, error);
  }
}

std::optional<StaticFailure> StaticSession::barrier() {
  if (gone_) return gone_;
  bool passed = false;
  try {
    const std::vector<std::string> last = {key(kLastMember)};
    barrier_begin_ = Clock::now();
    passed = store_->add(key(kMembers), 1) == job_.nodes;
    if (passed) {
      store_->set(last.front(), "<val_ignored>");
      store_->check(last);  // an answer: it has arrived
      return std::nullopt;
    }
    for (auto beaten = Clock::now();;) {
      try {
        store_->wait(last, kSlice);
        return std::nullopt;
      } catch (const TimeoutError&) {
        if (auto failure = told_failure()) return failure;
        if (auto failure = silent_peer()) return failure;
        if (job_.node != 0 && Clock::now() - beaten >= job_.beat_every) {
          count_beat();
          beaten = Clock::now();
        }
      }
    }
  } catch (const RendezvousError& error) {
    if (passed) return std::nullopt;  // then every node had ended well
    return node_0_gone(kTheEnd, error);
  }
}

std::optional<StaticFailure> StaticSession::told_failure() {
  const std::vector<std::string> failed = {key(kFailed)};
  if (!store_->check(failed)) return std::nullopt;
  const auto told = json::parse(store_->get(failed.front(), kAnswerTime), nullptr, false);
  int code = kInfrastructure, node = -1;
  if (told.is_object() && told.contains("exit_code") && told["exit_code"].is_number_integer()) code = told["exit_code"];
  if (told.is_object() && told.contains("node") && told["node"].is_number_integer()) node = told["node"];
  if (code < 1 || code > 255) code = kInfrastructure;
  return StaticFailure{code, fmt::format("node {} had ended with exit code {}", node, code)};
}

// Node 0 looks after the others; they see it go when its store goes. A node that never beat is torchrun's: it has
// torchrun's limit.
std::optional<StaticFailure> StaticSession::silent_peer() {
  const auto now = Clock::now();
  if (job_.node != 0) {
    // Node 0 may be torchrun's, which ends this itself.
    if (now - barrier_begin_ < job_.barrier_limit) return std::nullopt;
    if (store_->check(std::vector<std::string>{numbered(kBeat, 0)})) return std::nullopt;
    return StaticFailure{kInfrastructure,
                         fmt::format("not every node had ended {} s after this one", seconds(job_.barrier_limit))};
  }
  if (!pulses_.empty() && now - looked_ < std::min(job_.beat_every, job_.dead_after / 3)) return std::nullopt;
  if (pulses_.empty()) pulses_.assign(static_cast<std::size_t>(job_.nodes), {0, now});
  looked_ = now;
  bool all_beat = true;
  for (int node = 1; node < job_.nodes; ++node) {
    auto& pulse = pulses_[static_cast<std::size_t>(node)];
    const auto beats = store_->add(numbered(kBeat, node), 0);
    if (beats != pulse.beats) pulse = {beats, now};
    all_beat = all_beat && beats > 0;
    if (beats == 0 || now - pulse.at < job_.dead_after) continue;
    const StaticFailure dead{kInfrastructure, fmt::format("node {} is gone: nothing was heard of it for {} s", node,
                                                          seconds(now - pulse.at))};
    tell_failure(node, dead.exit_code);
    return dead;
  }
  if (all_beat || now - barrier_begin_ < job_.barrier_limit) return std::nullopt;
  return StaticFailure{kInfrastructure,
                       fmt::format("not every node had ended {} s after this one", seconds(job_.barrier_limit))};
}

void StaticSession::tell_failure(int node, int exit_code) noexcept {
  if (gone_) return;
  try {
    TcpStoreOptions options;
    options.host = store_at_.host;
    options.port = store_at_.port;
    options.timeout = kTellTime;
    TcpStore store(options);
    store.compare_set(key(kFailed), "", json{{"node", node}, {"exit_code", exit_code}}.dump());
  } catch (const std::exception&) {  // then the others see a node that is silent, or a store that is gone
  }
}

void StaticSession::close() {
  const std::lock_guard lock(mutex_);
  store_.reset();
}

void StaticSession::cancel() noexcept {
  cancelled_ = true;
  const std::lock_guard lock(mutex_);
  if (store_) store_->interrupt();
}

std::string StaticSession::key(std::string_view rest) const { return fmt::format("{}/{}", job_.run_id, rest); }

std::string StaticSession::numbered(std::string_view rest, int node) const {
  return fmt::format("{}/{}{}", job_.run_id, rest, node);
}

void StaticSession::show(const std::string& text, bool always) {
  const auto now = Clock::now();
  if (!always && now - shown_ < job_.status_every) return;
  shown_ = now;
  status_(fmt::format("waiting for nodes: {} (static, {}), {} s of {} s", text, job_.endpoint.to_string(),
                      seconds(now - begin_), seconds(job_.join_timeout)));
}

void StaticSession::pause(std::chrono::milliseconds time) {
  if (cancelled_) throw RendezvousError("rendezvous", "interrupted by the caller");
  std::this_thread::sleep_for(time);
}

void StaticSession::too_late(const std::string& what, const std::string& why) {
  throw TimeoutError("rendezvous", fmt::format("{} within {} s (static, {}){}", what, seconds(job_.join_timeout),
                                               job_.endpoint.to_string(), why));
}

}  // namespace dtrun::rendezvous
