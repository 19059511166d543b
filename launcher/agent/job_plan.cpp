#include "launcher/agent/job_plan.hpp"

#include "launcher/agent/machine.hpp"
#include "launcher/agent/program.hpp"
#include "rendezvous/base/env.hpp"

namespace dtrun::launcher {

JobPlan make_plan(const LaunchConfig& config) {
  JobPlan plan;
  plan.store = single_node_store(config);
  plan.workers = resolve_process_count(config.processes);
  plan.program = resolve_program(config, real_surroundings());
  plan.run_id = plan.store.generated_id        ? random_uuid()
                : config.rendezvous.id.empty() ? random_decimal()
                                               : config.rendezvous.id;
  if (!plan.store.fixed_port && env::get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1") plan.store.agent_store = false;
  return plan;
}

}  // namespace dtrun::launcher
