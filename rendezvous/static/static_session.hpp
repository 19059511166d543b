// The static backend's conversation with the store at the endpoint, key by key as torchrun 2.15 has it, so that its
// agents and ours may meet in one job. Blocking; StaticMember gives it a thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/endpoint.hpp"
#include "rendezvous/client/tcp_store.hpp"
#include "rendezvous/static/static_place.hpp"

namespace dtrun::rendezvous {

struct StaticJob {
  std::string run_id;
  int node = 0, nodes = 2;
  RoleInfo self;
  Endpoint endpoint;  // node 0's, as every node names it
  // Every node has the same number of workers and one role: no ranks are exchanged. All nodes must agree on it.
  bool identical = false;

  std::chrono::milliseconds join_timeout = std::chrono::seconds(900);
  std::chrono::milliseconds status_every = std::chrono::seconds(5);
  std::chrono::milliseconds beat_every = std::chrono::seconds(5);
  std::chrono::milliseconds dead_after = std::chrono::seconds(30);      // of a node that did beat
  std::chrono::milliseconds barrier_limit = std::chrono::seconds(300);  // for nodes that never did, as torchrun's
};

// A job that did not work out, as a peer told it or as it was seen.
struct StaticFailure {
  int exit_code = 75;
  std::string why;
};

// All calls on one thread, but cancel(), which ends the call in progress and every later one with RendezvousError.
// Keys of ours beside torchrun's: <run id>/dtrun/beat/<node>, counted up by nodes that live, and <run id>/dtrun/failed,
// {"node", "exit_code"} of the first node that left with a failure.
class StaticSession {
 public:
  using Status = std::function<void(const std::string& line)>;
  StaticSession(StaticJob job, Status status) : job_(std::move(job)), status_(std::move(status)) {}

  // Until all nodes are here and ranks are assigned. `store`: where this node finds the endpoint's store.
  std::variant<StaticPlace, StaticFailure> join(const Endpoint& store, std::string_view remark);
  // This node lives. The failure, the same one every time, once node 0 is gone.
  std::optional<StaticFailure> beat();
  // All workers of this node ended well: waits until those of every node did.
  std::optional<StaticFailure> barrier();
  // `node` (this one, or one that is silent) has ended with a failure. On a connection of its own, briefly, and not
  // when node 0 was seen to be gone.
  void tell_failure(int node, int exit_code) noexcept;
  void close();
  void cancel() noexcept;

 private:
  void connect(const Endpoint& store);
  StaticPlace meet(std::string_view remark);
  void count_beat();
  StaticFailure node_0_gone(std::string_view before, const std::exception& error);
  void await_count(std::string_view remark);
  // `missing`: for the user while it waits; `at_the_end`: when the join budget is used up.
  void await_keys(const std::vector<std::string>& keys, const std::function<std::string()>& missing,
                  const std::function<std::string()>& at_the_end);
  std::optional<StaticFailure> told_failure();
  std::optional<StaticFailure> silent_peer();
  std::string key(std::string_view rest) const;
  std::string numbered(std::string_view rest, int node) const;
  void show(const std::string& text, bool always = false);
  void pause(std::chrono::milliseconds time);
  [[noreturn]] void too_late(const std::string& what, const std::string& why = {});

  const StaticJob job_;
  const Status status_;
  Endpoint store_at_;
  Clock::time_point begin_, shown_, barrier_begin_;
  struct Pulse {
    std::int64_t beats = 0;
    Clock::time_point at;
  };
  std::optional<StaticFailure> gone_;  // node 0: its one line, whenever it was noticed
  std::vector<Pulse> pulses_;          // of the nodes, while node 0 is in the barrier
  Clock::time_point looked_;
  std::atomic<bool> cancelled_ = false;
  std::mutex mutex_;  // of the pointer: cancel() comes from another thread
  std::unique_ptr<TcpStore> store_;
};

}  // namespace dtrun::rendezvous
