// Rounds of a job on several nodes, as its coordinator gives them (--rdzv-backend c10d).
#pragma once

#include <boost/asio/steady_timer.hpp>

#include <memory>
#include <optional>
#include <string>

#include "launcher/agent/job_plan.hpp"
#include "launcher/agent/round_store.hpp"
#include "launcher/agent/rounds.hpp"
#include "rendezvous/base/clock.hpp"
#include "rendezvous/coordinator/coordinator_server.hpp"
#include "rendezvous/coordinator/membership_client.hpp"
#include "rendezvous/coordinator/name_lookup.hpp"

namespace dtrun::launcher {

// The agent that can listen on the endpoint hosts the coordinator and goes last; every agent, the host too, is a member
// of its job. Names are resolved again until the join budget is used up. Owner: the agent, its thread and io_context.
class SharedRounds : public Rounds {
 public:
  SharedRounds(boost::asio::io_context& io, const LaunchConfig& config, const JobPlan& plan, Listener listener);
  ~SharedRounds() override;

  bool shared() const override { return true; }
  void join() override;
  void failed(const rendezvous::Report& report, bool blames_another_node) override;
  void succeeded() override;
  void gone(std::int64_t step) override;
  void leave(const rendezvous::Verdict& verdict) override;

 private:
  void look_up();
  void found(const rendezvous::NameLookup::Addresses& addresses);
  bool host_at(const std::string& address);
  void become_member();
  void report_failure();
  void open_store(rendezvous::Epoch epoch);
  void start(const rendezvous::Assignment& place, const rendezvous::Start& order);
  void membership_ended(const rendezvous::Verdict& verdict);
  void end(rendezvous::Verdict verdict);
  void tell_loss();
  void tell_what_is_missing(Clock::duration after);
  void show(const rendezvous::Waiting& waiting);
  std::string store_host() const;
  int seconds_so_far() const;

  boost::asio::io_context& io_;
  const LaunchConfig& config_;
  const JobPlan& plan_;
  Listener listener_;
  const std::string own_address_;  // --local-addr, --interface; empty: that of the connection to the coordinator
  const std::optional<rendezvous::JobToken> token_;
  const int join_seconds_;    // until the first round
  const int search_seconds_;  // of them, until the coordinator is found
  const Clock::time_point since_ = Clock::now();
  rendezvous::NameLookup lookup_;
  boost::asio::steady_timer again_, status_, patience_, search_limit_;
  std::string problem_;     // before there is a member
  std::string loss_;        // of the coordinator, not yet told
  std::string last_shown_;  // of what it waits for
  RoundStore store_;
  std::unique_ptr<rendezvous::CoordinatorServer> server_;
  std::unique_ptr<rendezvous::MembershipClient> member_;
  rendezvous::Epoch epoch_ = 0;                       // of the round whose workers this node has or had
  std::optional<rendezvous::Verdict> own_, result_;   // a stop signal of our own; what is told when the host may go
  std::optional<rendezvous::Report> pending_report_;  // of a failure that may be the echo of another node's
  std::optional<std::int64_t> pending_gone_;
  bool told_ = false;
};

}  // namespace dtrun::launcher
