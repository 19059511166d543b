#include "launcher/agent/elastic_agent.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <optional>

#include "launcher/agent/decide.hpp"
#include "launcher/agent/exit_watcher.hpp"
#include "launcher/agent/machine.hpp"
#include "launcher/agent/memory_cgroup.hpp"
#include "launcher/agent/one_timer.hpp"
#include "launcher/agent/output_pump.hpp"
#include "launcher/agent/output_rules.hpp"
#include "launcher/agent/restart_clock.hpp"
#include "launcher/agent/rounds.hpp"
#include "launcher/agent/run_directory.hpp"
#include "launcher/agent/run_summary.hpp"
#include "launcher/agent/signal_watch.hpp"
#include "launcher/agent/snapshot_memory.hpp"
#include "launcher/agent/worker_group.hpp"
#include "launcher/agent/worker_spec.hpp"
#include "launcher/process/process_tree.hpp"
#include "rendezvous/contract/exit_codes.hpp"
#include "rendezvous/contract/progress_file.hpp"

namespace dtrun::launcher {
namespace {

namespace asio = boost::asio;
using Seconds = std::chrono::duration<double>;

constexpr auto kDrainLimit = std::chrono::milliseconds(1000);
constexpr auto kSweepBudget = std::chrono::milliseconds(2000);
// A process that was given up goes on holding its pipes, and needs no second wait.
constexpr auto kAfterGivingUp = std::chrono::milliseconds(100);
// Between batches the agent hears signals and deaths: thousands of workers take seconds to start.
constexpr int kStartBatch = 16;

}  // namespace

class ElasticAgent::Impl {
 public:
  Impl(const LaunchConfig& config, JobPlan plan, EventLog& events, RunReport& report)
      : config_(config),
        plan_(std::move(plan)),
        events_(events),
        report_(report),
        kill_limit_(kill_limit()),
        signals_(io_, config.stop),
        directory_(config.logs.directory, temporary_base_directory(), plan_.run_id),
        spec_(config, plan_, directory_, report.host),
        hub_(OutputHubOptions{.color = colors_wanted()}),
        watcher_(io_),
        output_(io_, hub_),
        timer_(io_),
        look_(io_),
        workers_(watcher_, hub_),
        rounds_(make_rounds(io_, config, plan_, listener())) {
    allow_descriptors(plan_.workers);
    if (restarts_possible(config)) spec_.offer_snapshot_memory();
    state_.budget.max_restarts = report_.max_restarts = config.max_restarts;
    state_.budget.max_no_progress = config.max_no_progress_restarts;
    state_.shared = rounds_->shared();
    state_.phase = Phase::idle;
    report_.run_id = plan_.run_id;
  }

  void run() {
    events_.start(config_, plan_.run_id, plan_.workers, report_.host);
    signals_.start([this](int number) { signal_came(number); });
    output_.start();
    watcher_.start([this](const std::vector<int>& ranks) { workers_ended(ranks); });
    rounds_->join();
    if (state_.phase != Phase::finished) io_.run();
    wind_up();
  }

  // Signals arrive through Asio, also when its loop has ended.
  bool told_to_hurry() {
    io_.restart();
    for (int handlers = 0; handlers < 64 && io_.poll_one() != 0; ++handlers) {
    }
    return hurry_from_ && Clock::now() >= *hurry_from_;
  }

 private:
  void signal_came(int number) {
    if (number == SIGCHLD) {
      reap_ended_children();
      return;
    }
    const bool stop = signals_.stops_the_job(number);
    if (stop) note_stop_signal(number);
    events_.signal(number);
    react({stop ? Event::Kind::stop_signal : Event::Kind::user_signal, number});
  }

  void note_stop_signal(int number) {
    const bool now = report_.stop_signal != 0 || state_.phase == Phase::finished;
    const Seconds grace(now ? 0.0 : std::min(config_.stop.shutdown_grace_seconds(), 86400.0));
    hurry_from_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace);
    // One that comes at the very end stops nothing but the waiting for readers.
    if (now) return;
    report_.stop_signal = number;
    stop_came_ = Clock::now();
  }

  void react(const Event& event) {
    for (const auto& action : decide(state_, event)) act(action);
  }

  void act(const Action& action) {
    using Kind = Action::Kind;
    switch (action.kind) {
      case Kind::start_workers:
        restart_.gone(Clock::now());
        events_.restart(action.value);
        rounds_->again(action.value);
        break;
      case Kind::tell_failure:
        tell_failure();
        break;
      case Kind::tell_success:
        rounds_->succeeded();
        break;
      case Kind::tell_gone:
        restart_.gone(Clock::now());
        rounds_->gone(furthest_step(directory_, round_.number, plan_.workers));
        break;
      case Kind::tell_leaving:
        rounds_->leave({action.value,
                        fmt::format("{} was stopped by {}", report_.host, signal_name(action.value - kExitSignalBase)),
                        report_.host, -1});
        break;
      case Kind::signal_groups:
        events_.stop(round_.number, name_of(state_.reason), action.value);
        workers_.stop(action.value);
        break;
      case Kind::signal_workers:
        workers_.forward(action.value);
        break;
      case Kind::kill_everything:
        events_.stop(round_.number, name_of(state_.reason), SIGKILL);
        workers_.kill();
        signal_descendants(SIGKILL);
        break;
      case Kind::sweep_leftovers:
        react({Event::Kind::swept, sweep(kSweepBudget)});
        break;
      case Kind::arm_restart_grace:
        arm(Seconds(config_.stop.restart_grace_seconds()));
        break;
      case Kind::arm_shutdown_grace:
        arm(Seconds(config_.stop.shutdown_grace_seconds()));
        break;
      case Kind::arm_kill_limit:
        arm(kill_limit_);
        break;
      case Kind::announce_interrupt:
        hub_.write_notice("dtrun: stopping the workers; Ctrl-C again to kill them");
        break;
      case Kind::finish:
        report_.exit_code = action.value;
        // Nodes that decide by themselves hear of it at their own end.
        if (!state_.shared && action.value != kExitSuccess) rounds_->leave({action.value, {}, report_.host, -1});
        io_.stop();
        break;
    }
  }

  void arm(Seconds delay) {
    timer_.arm(delay, [this] { react({Event::Kind::time_over}); });
  }

  Rounds::Listener listener() {
    return {[this](const Round& round) { start_round(round); },
            [this](RoundStop how, const std::string& why) { stop_round(how, why); },
            [this](const std::string& why) {
              round_failed(Clock::now());
              restart_.gone(Clock::now());
              another_round(why);
            },
            [this](const rendezvous::Verdict& verdict) {
              if (state_.shared || verdict.exit_code != kExitSuccess) verdict_ = verdict;
              react({Event::Kind::job_over, verdict.exit_code});
            },
            [this](const std::string& line) { hub_.write_notice("dtrun: " + line); }};
  }

  void start_round(const Round& round) {
    const auto now = Clock::now();
    timer_.cancel();
    end_attempt();
    restart_.round(now);
    workers_.clear();
    if (!report_.attempts.empty()) directory_.prune_attempt(round_.number);
    restarted_ = round.restarts > round_.restarts;
    round_ = round;
    culprit_ = -1;
    report_.waited_for.reset();
    memory_.forget_oom_kills();
    report_.restarts_used = round.restarts;
    report_.world_size = round.world_size;
    report_.add_attempt(round.number, std::chrono::system_clock::now());
    spec_.begin_round(round);
    events_.round(round, plan_.workers);
    react({Event::Kind::round_begins, plan_.workers});
    start_batch();
  }

  void stop_round(RoundStop how, const std::string& why) {
    // At the end it is said by the report, and that this node was cut off by the source of rounds.
    round_failed(Clock::now());
    if (how == RoundStop::next_round) another_round(why);
    react({Event::Kind::round_stops, static_cast<int>(how)});
  }

  void another_round(const std::string& why) {
    if (!report_.attempts.empty()) report_.attempts.back().ended_because = why;
    events_.round_over(round_.number, why);
    if (state_.reason != StopReason::signal) hub_.write_notice("dtrun: " + why);
  }

  void tell_failure() {
    rendezvous::Report report;
    report.verdict = failure_verdict(view(), ending());
    report.retry = start_error_.empty() && (culprit_ < 0 || may_retry(view(), culprit_));
    if (!report.retry && start_error_.empty())
      report.verdict.no_restart = state_.budget.text(rendezvous::NoRestart::cannot_help);
    report.step = report_.attempts.back().step;
    report.out_of_memory = culprit_ >= 0 && workers_[culprit_].out_of_memory;
    const auto& blamed = report_.waited_for;
    rounds_->failed(report, blamed && blamed->pid == 0);
  }

  void start_batch() {
    const int before = workers_.size();
    const int wanted = std::min(before + kStartBatch, plan_.workers);
    try {
      for (int rank = before; rank < wanted; ++rank) {
        workers_.start(spec_.launch_of(rank));
        events_.worker_started(round_, rank, workers_[rank].pid);
      }
    } catch (const SpawnError& error) {
      return start_failed(before, error, error.exit_code());
    } catch (const SystemError& error) {
      return start_failed(before, error, kExitInfrastructure);
    }
    react({Event::Kind::workers_started, wanted - before});
    if (wanted == plan_.workers) {
      const auto now = Clock::now();
      restart_.started(now);
      return watch_first_step(now);
    }
    asio::post(io_, [this, number = round_.number] {
      if (state_.phase == Phase::running && round_.number == number) start_batch();
    });
  }

  // What the round's own start took is told by now, and what the next one takes is counted from here.
  void round_failed(Clock::time_point now) {
    tell_restart();
    tells_steps_ = tells_steps_ || furthest_step(directory_, round_.number, workers_.size()) >= 0;
    restart_.failed(now);
  }

  // Only of programs that tell their steps: nothing else is looked at again and again.
  void watch_first_step(Clock::time_point since) {
    if (!restart_.waits_for_step()) return;
    if (!tells_steps_ || look_at_steps()) return tell_restart();
    look_.arm(until_next_look(Clock::now() - since), [this, since] { watch_first_step(since); });
  }

  bool look_at_steps() { return restart_.look(progress_of(directory_, round_.number, workers_.size()), Clock::now()); }

  // Once for a round: at its first step or at its end.
  void tell_restart() {
    look_.cancel();
    if (!restart_.waits_for_step()) return;
    const bool steps_known = look_at_steps() || tells_steps_;
    const auto times = report_.attempts.back().restart = restart_.times();
    restart_.forget();
    if (steps_known || restarted_)
      hub_.write_notice(fmt::format("dtrun: {} {}{}", restarted_ ? "restart" : "round",
                                    restarted_ ? round_.restarts : round_.number + 1,
                                    restart_text(*times, steps_known)));
  }

  // The ranks that did start are stopped, and reported.
  void start_failed(int before, const SystemError& error, int exit_code) {
    start_error_ = error.what() + limit_hint(error.error_number());
    react({Event::Kind::workers_started, workers_.size() - before});
    react({Event::Kind::start_failed, exit_code});
  }

  // In order of death. Workers that are dead by now have failed of themselves, even if we learn of it a moment later.
  void workers_ended(const std::vector<int>& ranks) {
    std::vector<int> ended;
    const auto collect = [&](int rank) {
      if (workers_.collect(rank)) ended.push_back(rank);
      return workers_.size() > rank && workers_[rank].status && !workers_[rank].status->success();
    };
    bool failed = false;
    for (const int rank : ranks) failed = collect(rank) || failed;
    for (int rank = 0; failed && rank < workers_.size(); ++rank) collect(rank);
    for (const int rank : ended) worker_ended(rank);
  }

  void worker_ended(int rank) {
    const auto& worker = workers_[rank];
    if (stop_came_) stop_took_ = Clock::now() - *stop_came_;
    // A SIGKILL that was not ours, and a kill by the kernel that is not yet accounted for.
    if (worker.status->signal == SIGKILL && !worker.killed && memory_.claim_oom_kill())
      workers_.mark_out_of_memory(rank);
    events_.worker_ended(round_, {rank, worker.pid, *worker.status, worker.out_of_memory, worker.asked_to_stop});
    Event event{Event::Kind::worker_ended, 0, *worker.status};
    const bool first_failure = state_.phase == Phase::running && !worker.status->success();
    if (first_failure) {
      culprit_ = rank;
      round_failed(Clock::now());
      event.step = report_.attempts.back().step = furthest_step(directory_, round_.number, workers_.size());
      event.out_of_memory = worker.out_of_memory;
      event.retry = may_retry(view(), rank);
      report_.waited_for = blamed_worker(view(), rank);
    }
    const auto actions = decide(state_, event);
    if (first_failure && state_.reason == StopReason::restart) hub_.write_notice(restart_notice(view(), rank, state_));
    for (const auto& action : actions) act(action);
  }

  // Returns how many processes could not be killed.
  int sweep(std::chrono::milliseconds budget) {
    if (!has_children()) return 0;
    const auto left = kill_descendants(budget);
    for (const auto& survivor : left) note_survivor(report_, survivor);
    return static_cast<int>(left.size());
  }

  void end_attempt() {
    if (report_.attempts.empty()) return;
    auto& attempt = report_.attempts.back();
    attempt.end = std::chrono::system_clock::now();
    if (culprit_ >= 0 || !start_error_.empty()) summarize_failure(attempt, view(), ending());
  }

  void wind_up() {
    timer_.cancel();
    tell_restart();
    spec_.drop_snapshot_memory();
    const auto earliest = Clock::now() + (state_.gave_up ? kAfterGivingUp : kDrainLimit);
    hub_.drain(Deadline(earliest), [&] { return told_to_hurry() && Clock::now() >= earliest; });
    end_attempt();
    conclude(report_, view(), ending());
    if (workers_.abandon_the_living() || state_.gave_up) {
      kill_descendants(kAfterGivingUp);  // those that are left have been named
    } else if (sweep(kSweepBudget) > 0) {
      report_.exit_code = kExitInfrastructure;
      report_.outcome = Outcome::infrastructure;
    }
    if (directory_.prune(report_.exit_code == 0)) report_.log_directory = directory_.path();
  }

  AttemptView view() const { return {workers_, hub_, directory_, memory_, report_.host, round_}; }
  Ending ending() const { return {state_, culprit_, start_error_, verdict_, stop_took_.count()}; }

  const LaunchConfig& config_;
  const JobPlan plan_;
  EventLog& events_;
  RunReport& report_;
  const Seconds kill_limit_;
  JobState state_;
  asio::io_context io_{1};
  SignalWatch signals_;  // from here on a signal waits for the loop instead of killing us, with a directory made
  RunDirectory directory_;
  WorkerSpec spec_;
  Round round_;
  std::optional<rendezvous::Verdict> verdict_;  // of the source of rounds: always of shared ones, else why they failed
  RestartClock restart_;
  bool restarted_ = false;    // the round follows a failure, not only a change of nodes
  bool tells_steps_ = false;  // the program was seen to tell its steps
  int culprit_ = -1;          // local rank of the first failure of this round
  std::string start_error_;   // a worker could not be started: why
  MemoryCgroup memory_;
  std::optional<Clock::time_point> stop_came_;   // the first signal that stops the job
  Seconds stop_took_{0};                         // from then to the last end of a worker
  std::optional<Clock::time_point> hurry_from_;  // from then on nobody waits for readers of the console

  OutputHub hub_;
  ExitWatcher watcher_;
  OutputPump output_;
  OneTimer timer_;
  OneTimer look_;  // at what the workers tell, after a restart
  WorkerGroup workers_;
  std::unique_ptr<Rounds> rounds_;
};

ElasticAgent::ElasticAgent(const LaunchConfig& config, JobPlan plan, EventLog& events, RunReport& report)
    : impl_(std::make_unique<Impl>(config, std::move(plan), events, report)) {}
ElasticAgent::~ElasticAgent() = default;
void ElasticAgent::run() { impl_->run(); }
bool ElasticAgent::told_to_hurry() { return impl_->told_to_hurry(); }

}  // namespace dtrun::launcher
