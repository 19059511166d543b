// Rounds of the static backend on several nodes: ranks are found once, then every node restarts by itself.
#pragma once

#include "launcher/agent/rounds.hpp"
#include "rendezvous/static/static_member.hpp"

namespace dtrun::launcher {

class StaticRounds : public Rounds {
 public:
  StaticRounds(boost::asio::io_context& io, const rendezvous::StaticJob& job, Listener listener);
  void join() override { member_.join(); }
  void again(int restarts) override;
  void succeeded() override { member_.succeeded(); }
  // This node will not end well; the others hear of it when their workers have ended.
  void leave(const rendezvous::Verdict& verdict) override { member_.leave(verdict.exit_code); }

 private:
  const Listener listener_;
  Round round_;
  rendezvous::StaticMember member_;
};

// What options and this node's plan come to.
rendezvous::StaticJob static_job(const LaunchConfig& config, const JobPlan& plan);

}  // namespace dtrun::launcher
