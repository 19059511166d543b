// An agent's membership in a job, on the network: a Member, its link to the coordinator and its clock.
#pragma once

#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/coordinator/coordinator_link.hpp"
#include "rendezvous/membership/member.hpp"

namespace dtrun::rendezvous {

// What the agent has to do, and reports when it is done. Called on the agent's thread, never from inside a call of
// MembershipClient that the agent makes.
struct MembershipOrders {
  std::function<void(Epoch)> open_store;                               // then store_opened()
  std::function<void(const Assignment&, const Start&)> start_workers;  // then workers_ended()
  std::function<void(const StopWorkers&)> stop_workers;  // then workers_gone(); it may come again, less patient
  std::function<void(const Waiting&)> waiting;
  std::function<void(const Verdict&)> exit;  // the last call
  std::function<void(const std::string& why)> another_round =
      {};  // follows the one whose workers are gone; may be empty
};

// Owner: the agent, one thread, its io_context. A coordinator that cannot be found within the join budget, or that is
// gone once it was found, is an exit with 75.
class MembershipClient {
 public:
  MembershipClient(boost::asio::io_context& io, Hello hello, Endpoint coordinator,
                   std::chrono::milliseconds join_budget, MembershipOrders orders, std::optional<JobToken> token = {});

  void join();
  // `host`: where the others reach it, when that is not the local address of this connection.
  void store_opened(Epoch epoch, std::uint16_t port, std::string host = {}) {
    step(StoreOpened{epoch, port, std::move(host)});
  }
  void workers_ended(Report report) { step(WorkersEnded{std::move(report)}); }
  // `finished`: steps of the slowest worker of those that tell; -1: none does.
  void workers_gone(Epoch epoch, std::int64_t finished = -1) { step(WorkersGone{epoch, finished}); }
  void leave(Verdict verdict) { step(LeaveWanted{std::move(verdict)}); }
  // Of the connection, or the last one: where the coordinator's machine reaches this one.
  std::string local_address() const { return link_.local_address(); }
  // The socket, for somebody who must speak in a signal handler; -1: there is none.
  int native_handle() { return link_.native_handle(); }
  // Why there is no connection, while there is none.
  const std::string& problem() const { return link_.problem(); }

 private:
  void step(const MemberEvent& event);
  void carry_out(const MemberEffect& effect);
  void later(std::function<void()> what);
  void arm_timer();
  void exit(const Verdict& verdict);

  boost::asio::io_context& io_;
  const std::chrono::milliseconds join_budget_;
  MembershipOrders orders_;
  Member member_;
  CoordinatorLink link_;
  boost::asio::steady_timer timer_;
  Clock::time_point timer_at_ = Clock::time_point::max();
  bool exited_ = false;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace dtrun::rendezvous
