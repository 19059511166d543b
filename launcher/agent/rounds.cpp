#include "launcher/agent/rounds.hpp"

#include "launcher/agent/local_rounds.hpp"
#include "launcher/agent/shared_rounds.hpp"
#include "launcher/agent/static_rounds.hpp"

namespace dtrun::launcher {

std::unique_ptr<Rounds> make_rounds(boost::asio::io_context& io, const LaunchConfig& config, const JobPlan& plan,
                                    Rounds::Listener listener) {
  if (plan.kind == JobKind::shared_nodes) return std::make_unique<SharedRounds>(io, config, plan, std::move(listener));
  if (plan.kind == JobKind::static_nodes)
    return std::make_unique<StaticRounds>(io, static_job(config, plan), std::move(listener));
  return std::make_unique<LocalRounds>(io, plan, std::move(listener));
}

}  // namespace dtrun::launcher
