#include "launcher/agent/static_rounds.hpp"

#include <utility>

#include "launcher/agent/job_plan.hpp"
#include "launcher/config/launch_config.hpp"
#include "rendezvous/base/env.hpp"

namespace dtrun::launcher {

StaticRounds::StaticRounds(boost::asio::io_context& io, const rendezvous::StaticJob& job, Listener listener)
    : listener_(std::move(listener)),
      member_(io, job,
              {[this, endpoint = job.endpoint](const rendezvous::StaticPlace& place) {
                 round_.group_rank = place.node;
                 round_.group_world_size = place.nodes;
                 round_.first_rank = place.first_rank;
                 round_.world_size = place.world_size;
                 round_.first_role_rank = place.first_role_rank;
                 round_.role_world_size = place.role_world_size;
                 round_.master_addr = endpoint.host;
                 round_.master_port = endpoint.port;
                 listener_.start(round_);
               },
               [this](const std::string& line) { listener_.note(line); },
               [this](const rendezvous::StaticFailure& failure) {
                 listener_.over({failure.exit_code, failure.why, {}, -1});
               },
               [this] { listener_.over({}); }}) {}

void StaticRounds::again(int restarts) {
  round_.number = round_.restarts = restarts;
  member_.again();
}

rendezvous::StaticJob static_job(const LaunchConfig& config, const JobPlan& plan) {
  rendezvous::StaticJob job;
  job.run_id = plan.run_id;
  job.node = config.rendezvous.node_rank.value_or(0);
  job.nodes = config.nodes.max;
  job.self = {config.role, plan.workers};
  job.endpoint = plan.endpoint;
  job.identical = env::get("TORCH_ELASTIC_WORKER_IDENTICAL") == "1";
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(job.join_timeout).count();
  job.join_timeout = std::chrono::seconds(conf_number(config.rendezvous, "timeout", static_cast<int>(seconds)));
  return job;
}

}  // namespace dtrun::launcher
