#include "launcher/agent/elastic_agent.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>

#include "launcher/agent/decide.hpp"
#include "launcher/agent/event_log.hpp"
#include "launcher/agent/exit_watcher.hpp"
#include "launcher/agent/failure_summary.hpp"
#include "launcher/agent/machine.hpp"
#include "launcher/agent/oom_counter.hpp"
#include "launcher/agent/output_rules.hpp"
#include "launcher/agent/program.hpp"
#include "launcher/agent/round_store.hpp"
#include "launcher/agent/run_directory.hpp"
#include "launcher/agent/worker_environment.hpp"
#include "launcher/agent/worker_group.hpp"
#include "launcher/process/job_mark.hpp"
#include "launcher/process/process_tree.hpp"
#include "rendezvous/base/signal_descriptor.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/contract/exit_codes.hpp"

namespace dtrun::launcher {
namespace {

namespace asio = boost::asio;
using Seconds = std::chrono::duration<double>;

// After SIGKILL: a process in an uninterruptible call of the kernel is given up then.
constexpr Seconds kKillLimit{10.0};
constexpr auto kDrainLimit = std::chrono::seconds(1);
constexpr auto kSweepBudget = std::chrono::milliseconds(2000);

// Descriptors per worker: pidfd, two pipes, two log files, and the write ends during the start.
void allow_descriptors(int workers) {
  rlimit limit{};
  const auto wanted = static_cast<rlim_t>(workers) * 6 + 64;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int duplicate(int fd) {
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) throw_errno("launcher", "no descriptor for the workers' output");
  return copy;
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

class ElasticAgent::Impl {
 public:
  Impl(const LaunchConfig& config, JobPlan plan)
      : config_(config),
        plan_(std::move(plan)),
        early_signals_(open_signals()),
        directory_(config.logs.directory, temporary_base_directory(), plan_.run_id),
        events_(config, plan_.run_id),
        watcher_(io_),
        hub_ready_(io_, duplicate(hub_.event_fd())),
        signals_(io_, early_signals_.release()),
        timer_(io_),
        store_(io_, plan_.store),
        workers_(watcher_, hub_) {
    allow_descriptors(plan_.workers);
    inherited_ = own_environment();
    place_.world_size = plan_.workers;
    place_.run_id = plan_.run_id;
    if (const auto mark = JobMark::of_guardian(::getppid())) place_.job = mark->to_string();
    place_.master_addr = plan_.store.host;
    place_.agent_store = plan_.store.agent_store;
    place_.allowed_cores = plan_.workers > 1 ? allowed_cores() : 1;
    output_.workers = plan_.workers;
    output_.terminal = ::isatty(STDOUT_FILENO) == 1;
    output_.host = host_name();
    state_.max_restarts = config.max_restarts;
  }

  RunResult run() {
    wait_for_signal();
    wait_for_output();
    watcher_.start([this](const std::vector<int>& ranks) { workers_ended(ranks); });
    start_round();
    if (state_.phase != Phase::finished) io_.run();
    return wind_up();
  }

  // Signals arrive through Asio, also when its loop has ended.
  bool told_to_hurry() {
    io_.restart();
    for (int handlers = 0; handlers < 64 && io_.poll_one() != 0; ++handlers) {
    }
    return hurry_from_ && Clock::now() >= *hurry_from_;
  }

 private:
  UniqueFd open_signals() const {
    std::vector<int> numbers{SIGCHLD, SIGUSR1, SIGUSR2};
    for (const int number : config_.stop.signals) {
      if (number != SIGHUP || !is_ignored(SIGHUP)) numbers.push_back(number);  // nohup stays nohup
    }
    return open_signal_descriptor(numbers);
  }

  bool is_stop_signal(int number) const {
    return std::find(config_.stop.signals.begin(), config_.stop.signals.end(), number) != config_.stop.signals.end();
  }

  void wait_for_signal() {
    signals_.async_wait(asio::posix::descriptor_base::wait_read, [this](const boost::system::error_code& error) {
      if (error) return;
      const int number = next_signal(signals_.native_handle());
      wait_for_signal();
      if (number != 0) signal_came(number);
    });
  }

  void signal_came(int number) {
    if (number == SIGCHLD) {
      reap_ended_children();
      return;
    }
    const bool stop = is_stop_signal(number);
    if (stop) note_stop_signal(number);
    events_.signal_received(number);
    react({stop ? Event::Kind::stop_signal : Event::Kind::user_signal, number, {}});
  }

  void note_stop_signal(int number) {
    const bool now = stop_signal_ != 0 || state_.phase == Phase::finished;
    const Seconds grace(now ? 0.0 : std::min(config_.stop.shutdown_grace_seconds(), 86400.0));
    hurry_from_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace);
    // One that comes at the very end stops nothing but the waiting for readers.
    if (state_.phase != Phase::finished) stop_signal_ = number;
  }

  void wait_for_output() {
    hub_ready_.async_wait(asio::posix::descriptor_base::wait_read, [this](const boost::system::error_code& error) {
      if (error) return;
      hub_.process();
      wait_for_output();
    });
  }

  void react(const Event& event) {
    for (const auto& action : decide(state_, event)) act(action);
  }

  void act(const Action& action) {
    using Kind = Action::Kind;
    switch (action.kind) {
      case Kind::start_workers:
        start_round();
        break;
      case Kind::signal_groups:
        workers_.stop(action.value);
        break;
      case Kind::signal_workers:
        workers_.forward(action.value);
        break;
      case Kind::kill_everything:
        workers_.kill();
        signal_descendants(SIGKILL);
        break;
      case Kind::sweep_leftovers:
        sweep();
        break;
      case Kind::arm_restart_grace:
        arm(Seconds(config_.stop.restart_grace_seconds()));
        break;
      case Kind::arm_shutdown_grace:
        arm(Seconds(config_.stop.shutdown_grace_seconds()));
        break;
      case Kind::arm_kill_limit:
        arm(kKillLimit);
        break;
      case Kind::announce_interrupt:
        hub_.write_notice("dtrun: stopping the workers; Ctrl-C again to kill them");
        break;
      case Kind::finish:
        result_.exit_code = action.value;
        io_.stop();
        break;
    }
  }

  void arm(Seconds delay) {
    // A day is as good as for ever, and fits the clock.
    timer_.expires_after(std::chrono::duration_cast<Clock::duration>(std::min(delay, Seconds(86400.0))));
    timer_.async_wait([this, number = ++timer_number_](const boost::system::error_code& error) {
      if (!error && number == timer_number_) react({Event::Kind::time_over, 0, {}});
    });
  }

  // They exist even when no line passes.
  void make_filtered_files() const {
    if (!directory_.exists()) return;
    const auto touch = [&](const std::vector<std::string>& filters, const char* name) {
      if (!filters.empty())
        UniqueFd(::open((place_.log_directory + name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    };
    touch(config_.logs.stdout_filters, "/filtered_stdout.log");
    touch(config_.logs.stderr_filters, "/filtered_stderr.log");
  }

  void start_round() {
    timer_.cancel();
    ++timer_number_;
    workers_.clear();
    culprit_ = -1;
    oom_kills_before_ = oom_counter_.read();
    place_.attempt = state_.attempt;
    place_.log_directory = directory_.attempt(state_.attempt);
    directory_.make_attempt(state_.attempt, plan_.workers);
    make_filtered_files();
    place_.master_port = store_.open();
    events_.round_started(state_.attempt, plan_.workers, place_.master_addr, place_.master_port);
    std::vector<WorkerLaunch> launches;
    for (int rank = 0; rank < plan_.workers; ++rank) launches.push_back(launch_of(rank));
    try {
      for (auto& launch : launches) {
        workers_.start(launch);
        events_.worker_started(workers_.size() - 1, workers_[workers_.size() - 1].pid);
      }
    } catch (const SpawnError& error) {
      return start_failed(error, error.exit_code());
    } catch (const SystemError& error) {
      return start_failed(error, kExitInfrastructure);
    }
    react({Event::Kind::workers_started, workers_.size(), {}});
  }

  // The ranks that did start are stopped, and reported.
  void start_failed(const SystemError& error, int exit_code) {
    start_error_ = error.what() + limit_hint(error.error_number());
    react({Event::Kind::workers_started, workers_.size(), {}});
    react({Event::Kind::start_failed, exit_code, {}});
  }

  WorkerLaunch launch_of(int rank) {
    WorkerLaunch launch;
    auto& process = launch.process;
    process.argv = plan_.program;
    if (!plan_.cpus.empty()) process.cpus = plan_.cpus[static_cast<std::size_t>(rank)];
    for (const auto& argument : config_.arguments) process.argv.push_back(substitute_local_rank(argument, rank));
    process.environment =
        worker_environment(inherited_, config_, place_, rank, directory_.error_file(state_.attempt, rank));
    const bool reads = config_.stdin_mode == StdinMode::all || (config_.stdin_mode == StdinMode::rank0 && rank == 0);
    if (reads) process.stdin_fd = STDIN_FILENO;
    output_.attempt_directory = place_.log_directory;
    output_.rank_directory = directory_.rank(state_.attempt, rank);
    launch.output = output_plan(config_, output_, rank);
    return launch;
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
    for (const int rank : ended) {
      if (workers_[rank].status->signal == SIGKILL && !workers_[rank].killed && oom_counter_.read() > oom_kills_before_)
        workers_.mark_out_of_memory(rank);
      const auto& worker = workers_[rank];
      events_.worker_ended(rank, worker.pid, *worker.status, worker.asked_to_stop);
      if (state_.phase == Phase::running && !worker.status->success()) {
        culprit_ = rank;
        if (state_.attempt < state_.max_restarts) announce_restart(worker);
      }
      react({Event::Kind::worker_ended, 0, *worker.status});
    }
  }

  void announce_restart(const Worker& worker) {
    hub_.write_notice(fmt::format("dtrun: rank {} (pid {}) failed: {}; restart {} of {} follows", culprit_, worker.pid,
                                  worker.status->to_string(), state_.attempt + 1, state_.max_restarts));
  }

  void sweep() {
    if (!has_children()) return;
    for (const auto& survivor : kill_descendants(kSweepBudget)) {
      result_.notes.push_back(fmt::format("pid {} (state {}, in {}) cannot be killed", survivor.pid, survivor.state,
                                          survivor.wait_channel));
    }
  }

  RunResult wind_up() {
    timer_.cancel();
    const auto earliest = Clock::now() + kDrainLimit;
    hub_.drain(Deadline(earliest), [&] { return told_to_hurry() && Clock::now() >= earliest; });
    note_the_stubborn();
    if (!start_error_.empty() || culprit_failed()) {
      result_.report = failure_report();
    } else if (stop_signal_ != 0) {
      result_.notes.insert(result_.notes.begin(), fmt::format("stopped by {}", signal_name(stop_signal_)));
    }
    sweep();
    events_.verdict(result_.exit_code);
    if (directory_.prune(result_.exit_code == 0)) result_.log_directory = directory_.path();
    if (result_.report) {
      result_.report->log_directory = result_.log_directory;
      result_.report->notes = result_.notes;
    }
    return std::move(result_);
  }

  // A failure with no restart left. A signal that came later did not change that, nor did a worker that could not be
  // killed; a signal that kept a restart from happening did.
  bool culprit_failed() const {
    return culprit_ >= 0 &&
           (result_.exit_code == workers_[culprit_].status->shell_code() || result_.exit_code == kExitInfrastructure);
  }

  void note_the_stubborn() {
    std::string ranks;
    for (int rank = 0; rank < workers_.size(); ++rank) {
      if (!workers_[rank].killed) continue;
      ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
      if (workers_[rank].status) continue;
      const auto survivor = describe_process(workers_[rank].pid);
      result_.notes.push_back(fmt::format("rank {} (pid {}, state {}, in {}) cannot be killed", rank, survivor.pid,
                                          survivor.state, survivor.wait_channel));
    }
    if (!ranks.empty())
      result_.notes.push_back(fmt::format("killed, because they did not stop in time: rank {}", ranks));
  }

  FailureReport failure_report() const {
    FailureReport report;
    report.program = config_.program;
    report.run_id = plan_.run_id;
    report.exit_code = result_.exit_code;
    report.world_size = plan_.workers;
    report.restarts_used = state_.attempt;
    report.max_restarts = state_.max_restarts;
    report.all_output_in_files = workers_.size() == plan_.workers;
    for (int rank = 0; rank < workers_.size(); ++rank) {
      const auto& output = workers_[rank].output;
      if (output.stdout_file.empty() || output.stderr_file.empty()) report.all_output_in_files = false;
    }
    fill_in_failures(report, {workers_, hub_, directory_, output_.host, state_.attempt}, culprit_, start_error_);
    return report;
  }

  const LaunchConfig& config_;
  const JobPlan plan_;
  JobState state_;
  RunResult result_;
  UniqueFd early_signals_;  // from here on a signal waits for the loop instead of killing us, with a directory made
  RunDirectory directory_;
  EventLog events_;
  RoundPlace place_;
  OutputSurroundings output_;
  std::vector<std::string> inherited_;
  int culprit_ = -1;         // local rank of the first failure of this attempt
  std::string start_error_;  // a worker could not be started: why
  OomCounter oom_counter_;
  std::uint64_t oom_kills_before_ = 0;  // this attempt
  int stop_signal_ = 0;
  std::optional<Clock::time_point> hurry_from_;  // from then on nobody waits for readers of the console

  asio::io_context io_{1};
  OutputHub hub_;
  ExitWatcher watcher_;
  asio::posix::stream_descriptor hub_ready_;
  asio::posix::stream_descriptor signals_;
  asio::steady_timer timer_;
  unsigned timer_number_ = 0;
  RoundStore store_;
  WorkerGroup workers_;
};

ElasticAgent::ElasticAgent(const LaunchConfig& config, JobPlan plan)
    : impl_(std::make_unique<Impl>(config, std::move(plan))) {}
ElasticAgent::~ElasticAgent() = default;
RunResult ElasticAgent::run() { return impl_->run(); }
bool ElasticAgent::told_to_hurry() { return impl_->told_to_hurry(); }

}  // namespace dtrun::launcher
