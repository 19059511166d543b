// Rounds of a job on one node: the next one begins when the agent asks for it.
#pragma once

#include "launcher/agent/job_plan.hpp"
#include "launcher/agent/round_store.hpp"
#include "launcher/agent/rounds.hpp"

namespace dtrun::launcher {

class LocalRounds : public Rounds {
 public:
  LocalRounds(boost::asio::io_context& io, const JobPlan& plan, Listener listener)
      : plan_(plan), listener_(std::move(listener)), store_(io) {}

  void join() override { again(0); }
  void again(int restarts) override;
  void succeeded() override { listener_.over({}); }

 private:
  const JobPlan& plan_;
  Listener listener_;
  RoundStore store_;
};

}  // namespace dtrun::launcher
