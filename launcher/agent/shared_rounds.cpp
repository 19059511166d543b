#include "launcher/agent/shared_rounds.hpp"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "launcher/agent/free_port.hpp"
#include "launcher/agent/machine.hpp"
#include "launcher/agent/node_address.hpp"
#include "launcher/agent/worker_group.hpp"
#include "launcher/process/last_words.hpp"
#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/contract/exit_codes.hpp"
#include "rendezvous/membership/message_text.hpp"

namespace dtrun::launcher {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kJoinSeconds = 600, kLastCallSeconds = 5;
constexpr auto kBetweenLookups = seconds(1), kOneLookup = seconds(5);
constexpr auto kBetweenLines = seconds(5);
// A coordinator that ended refuses connections at once: then there is one line, that of the end.
constexpr auto kBeforeLossIsTold = seconds(1);
constexpr auto kPatienceWithTheBlamed = milliseconds(200);

milliseconds whole_milliseconds(double number) { return milliseconds(static_cast<std::int64_t>(number * 1000)); }

rendezvous::JobRules job_rules(const LaunchConfig& config) {
  const auto& options = config.rendezvous;
  rendezvous::JobRules rules;
  rules.job = options.id;
  rules.min_nodes = config.nodes.min;
  rules.max_nodes = config.nodes.max;
  rules.max_restarts = config.max_restarts;
  rules.max_no_progress_restarts = config.max_no_progress_restarts;
  const auto join = options.conf.find("join");
  rules.join_restarts = join == options.conf.end() || join->second != "wait";
  rules.join_timeout = seconds(conf_number(options, "join_timeout", kJoinSeconds));
  rules.last_call = seconds(conf_number(options, "last_call_timeout", kLastCallSeconds));
  const int beat = conf_number(options, "keep_alive_interval", 1);
  const int attempts = conf_number(options, "keep_alive_max_attempt", beat == 1 ? 5 : 3);
  rules.heartbeat = seconds(beat);
  rules.dead_after = seconds(beat) * attempts;
  // Its workers have their grace period, and what ignores SIGKILL is given up later.
  const auto kill = whole_milliseconds(kill_limit().count()) + seconds(5);
  rules.stop_limit = whole_milliseconds(config.stop.restart_grace_seconds()) + kill;
  rules.farewell = whole_milliseconds(config.stop.shutdown_grace_seconds()) + kill;
  return rules;
}

std::optional<rendezvous::JobToken> token_of(const RendezvousOptions& options) {
  if (options.token_file.empty()) return {};
  return rendezvous::JobToken::read(options.token_file);
}

}  // namespace

SharedRounds::SharedRounds(asio::io_context& io, const LaunchConfig& config, const JobPlan& plan, Listener listener)
    : io_(io),
      config_(config),
      plan_(plan),
      listener_(std::move(listener)),
      own_address_(chosen_address(config.rendezvous)),
      token_(token_of(config.rendezvous)),
      join_seconds_(conf_number(config.rendezvous, "join_timeout", kJoinSeconds)),
      search_seconds_(std::min(join_seconds_, conf_number(config.rendezvous, "read_timeout", join_seconds_))),
      lookup_(io),
      again_(io),
      status_(io),
      patience_(io),
      search_limit_(io),
      store_(io) {}

SharedRounds::~SharedRounds() { forget_last_words(); }

void SharedRounds::join() {
  tell_what_is_missing(kBetweenLines);
  search_limit_.expires_at(since_ + seconds(search_seconds_));
  search_limit_.async_wait([this](const boost::system::error_code& ended) {
    if (ended || member_) return;
    end({kExitInfrastructure, fmt::format("no coordinator at {}: {}", plan_.endpoint.to_string(), problem_), "", -1});
  });
  look_up();
}

int SharedRounds::seconds_so_far() const {
  return static_cast<int>(std::chrono::duration_cast<seconds>(Clock::now() - since_).count());
}

void SharedRounds::look_up() {
  if (problem_.empty()) problem_ = fmt::format("looking up the name {}", plan_.endpoint.host);
  lookup_.start(plan_.endpoint, kOneLookup,
                [this](const std::string& problem, const rendezvous::NameLookup::Addresses& addresses) {
                  if (problem.empty()) return found(addresses);
                  problem_ = problem;
                  again_.expires_after(kBetweenLookups);
                  again_.async_wait([this](const boost::system::error_code& ended) {
                    if (!ended && !told_) look_up();
                  });
                });
}

void SharedRounds::found(const rendezvous::NameLookup::Addresses& addresses) {
  search_limit_.cancel();
  problem_.clear();
  const auto is_host = conf_flag(config_.rendezvous, "is_host");
  bool loopback_only = true, hosting = false;
  for (const auto& entry : addresses) loopback_only = loopback_only && is_loopback_host(entry.address().to_string());
  if (is_host.value_or(true)) {
    // A host name that its own /etc/hosts sends to 127.0.1.1: the others look for it at its real addresses.
    if (loopback_only && !is_loopback_host(plan_.endpoint.host)) {
      hosting = host_at("0.0.0.0");
    } else {
      for (const auto& entry : addresses) hosting = hosting || host_at(entry.address().to_string());
    }
    // Behind an address that is translated on its way.
    if (is_host && !hosting && !host_at("0.0.0.0"))
      throw UsageError("rendezvous", fmt::format("is_host in --rdzv-conf, but the port of {} is taken on this machine",
                                                 plan_.endpoint.to_string()));
  }
  become_member();
}

// False when the address is not ours, or another agent of this machine has it.
bool SharedRounds::host_at(const std::string& address) {
  try {
    server_ = std::make_unique<rendezvous::CoordinatorServer>(
        io_, job_rules(config_), address, plan_.endpoint.port,
        rendezvous::CoordinatorServer::Callbacks{[this](const std::string& line) { listener_.note(line); },
                                                 [this] {
                                                   if (result_) end(*result_);
                                                 }},
        token_);
    if (!server_->warning().empty()) listener_.note(server_->warning());
    return true;
  } catch (const UsageError&) {
    return false;
  } catch (const SystemError& error) {
    if (error.error_number() != EADDRINUSE) throw;
    return false;
  }
}

void SharedRounds::become_member() {
  rendezvous::Hello hello;
  hello.job = config_.rendezvous.id;
  hello.node = config_.rendezvous.local_addr.value_or(host_name());
  hello.address = own_address_;
  hello.slots = plan_.workers;
  hello.node_rank = config_.rendezvous.node_rank;
  hello.role = config_.role;
  hello.min_nodes = config_.nodes.min;
  hello.max_nodes = config_.nodes.max;
  rendezvous::MembershipOrders orders;
  orders.open_store = [this](rendezvous::Epoch epoch) { open_store(epoch); };
  orders.start_workers = [this](const rendezvous::Assignment& place, const rendezvous::Start& order) {
    start(place, order);
  };
  orders.stop_workers = [this](const rendezvous::StopWorkers& stop) {
    if (!stop.polite) {
      forget_last_words();
      loss_ = stop.why;
      tell_what_is_missing(kBeforeLossIsTold);
    }
    pending_report_.reset();
    pending_gone_.reset();
    listener_.stop(!stop.polite    ? RoundStop::at_once
                   : stop.job_over ? RoundStop::job_ends
                                   : RoundStop::next_round,
                   stop.why);
  };
  orders.waiting = [this](const rendezvous::Waiting& waiting) { show(waiting); };
  orders.another_round = listener_.another;
  orders.exit = [this](const rendezvous::Verdict& verdict) { membership_ended(verdict); };
  const auto left = std::max(
      milliseconds(0), std::chrono::duration_cast<milliseconds>(since_ + seconds(search_seconds_) - Clock::now()));
  // The host reaches itself wherever it listens.
  member_ = std::make_unique<rendezvous::MembershipClient>(io_, std::move(hello), plan_.endpoint, left,
                                                           std::move(orders), token_);
  member_->join();
}

void SharedRounds::show(const rendezvous::Waiting& waiting) {
  std::string line;
  if (waiting.running == 0) {
    line = fmt::format("waiting for nodes: {} of {} are here, {} s of {} s", waiting.here, waiting.wanted,
                       waiting.seconds, join_seconds_);
  } else if (waiting.running >= waiting.wanted) {
    line = fmt::format("this node is a spare: the job has its {}; it takes the place of one that is lost",
                       counted(waiting.running, "node"));
  } else {
    line = fmt::format("the job runs with {} of {} nodes; this one has a place in its next round", waiting.running,
                       waiting.wanted);
  }
  // A spare is one in round after round.
  if (line != std::exchange(last_shown_, line)) listener_.note(line);
}

// The address at which the other nodes reach this one's store.
std::string SharedRounds::store_host() const {
  if (!own_address_.empty()) return own_address_;
  auto address = member_->local_address();
  // The host of the coordinator may know itself by the loopback only; the others reached it at another address.
  if (!is_loopback_host(address) || !server_) return address;
  const auto reached = server_->reached_at();
  return reached.empty() ? address : reached;
}

void SharedRounds::open_store(rendezvous::Epoch epoch) {
  const auto host = store_host();
  const int port = plan_.store.agent_store ? store_.open(host, 0) : free_port(host);
  member_->store_opened(epoch, static_cast<std::uint16_t>(port), host);
}

void SharedRounds::start(const rendezvous::Assignment& place, const rendezvous::Start& order) {
  tell_loss();
  if (!place.open_store) store_.close();
  epoch_ = place.epoch;
  Round round;
  round.number = static_cast<int>(place.epoch) - 1;
  round.restarts = place.restart_count;
  round.group_rank = place.group_rank;
  round.group_world_size = place.group_world_size;
  round.first_rank = place.first_rank;
  round.world_size = place.world_size;
  round.first_role_rank = place.first_role_rank;
  round.role_world_size = place.role_world_size;
  round.master_addr = order.store_host;
  round.master_port = order.store_port;
  round.agent_store = plan_.store.agent_store;
  prepare_last_words(member_->native_handle(),
                     encode(rendezvous::ToCoordinator(rendezvous::Leave{"its dtrun was killed"})));
  listener_.start(round);
}

// A worker that says it waited in vain for a rank of another node: that node's agent may be about to tell why.
void SharedRounds::failed(const rendezvous::Report& report, bool blames_another_node) {
  pending_report_ = report;
  pending_report_->epoch = epoch_;
  if (!blames_another_node) return report_failure();
  patience_.expires_after(kPatienceWithTheBlamed);
  patience_.async_wait([this](const boost::system::error_code& error) {
    if (!error && pending_report_) report_failure();
  });
}

void SharedRounds::report_failure() {
  member_->workers_ended(*std::exchange(pending_report_, std::nullopt));
  if (const auto step = std::exchange(pending_gone_, std::nullopt)) member_->workers_gone(epoch_, *step);
}

void SharedRounds::succeeded() { member_->workers_ended({epoch_, true, true, {}}); }

// Not before the failure is known: the member would take the round for one that ended otherwise.
void SharedRounds::gone(std::int64_t step) {
  forget_last_words();
  if (pending_report_) {
    pending_gone_ = step;
  } else {
    member_->workers_gone(epoch_, step);
  }
}

void SharedRounds::leave(const rendezvous::Verdict& verdict) {
  own_ = verdict;
  if (server_) {
    auto all = verdict;
    all.text += "; the coordinator ran there";
    return server_->host_stops(std::move(all));
  }
  if (member_) return member_->leave(verdict);
  end(verdict);
}

void SharedRounds::membership_ended(const rendezvous::Verdict& verdict) {
  const auto& result = own_ ? *own_ : verdict;
  if (!server_ || server_->state().over()) return end(result);
  // The host goes last. When it must go for a reason of its own the others must hear of it.
  result_ = result;
  if (server_->state().phase() != rendezvous::RoundPhase::ending) server_->host_stops(verdict);
}

// Never from inside a call of the agent.
void SharedRounds::end(rendezvous::Verdict verdict) {
  if (std::exchange(told_, true)) return;
  again_.cancel();
  status_.cancel();
  search_limit_.cancel();
  lookup_.cancel();
  asio::post(io_, [this, verdict = std::move(verdict)] { listener_.over(verdict); });
}

// Why the workers of this node were killed.
void SharedRounds::tell_loss() {
  if (loss_.empty()) return;
  listener_.note(fmt::format("{}; the workers here were killed, looking for {} again", std::exchange(loss_, {}),
                             plan_.endpoint.to_string()));
}

void SharedRounds::tell_what_is_missing(Clock::duration after) {
  status_.expires_after(after);
  status_.async_wait([this](const boost::system::error_code& error) {
    if (error || told_) return;
    if (!loss_.empty()) {
      tell_loss();
      return tell_what_is_missing(kBetweenLines);
    }
    const auto& problem = member_ ? member_->problem() : problem_;
    if (!problem.empty()) {
      listener_.note(fmt::format("waiting for the coordinator at {}: {}, {} s of {} s", plan_.endpoint.to_string(),
                                 problem, seconds_so_far(), search_seconds_));
    }
    tell_what_is_missing(kBetweenLines);
  });
}

}  // namespace dtrun::launcher
