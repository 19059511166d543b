#include "rendezvous/membership/member.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/contract/exit_codes.hpp"

namespace dtrun::rendezvous {
namespace {

// A cut-off agent kills its workers this part of the silence early: they are gone when the others give it up.
constexpr int kFencePart = 10;

}  // namespace

MemberEffects Member::step(const MemberEvent& event, Time now) {
  now_ = std::max(now_, now);
  if (!exited_) {
    std::visit([&](const auto& content) { take(content); }, event);
    look_at_clocks();
    exit_when_alone();
  }
  return std::exchange(effects_, {});
}

void Member::take(const Connected&) {
  link_ = Link::greeted;
  reconnect_ = false;
  place_ = {};  // another coordinator counts from 1 again
  offered_ = false;
  unanswered_.clear();
  alive_at_ = beat_at_ = now_;
  say(hello_);
}

void Member::take(const CoordinatorSaid& said) {
  if (link_ == Link::none) return;
  std::visit([&](const auto& content) { hear(content); }, said.message);
}

void Member::take(const ConnectionLost& lost) {
  if (link_ == Link::none) return;
  cut_off(lost.why, true);
}

void Member::take(const StoreOpened& opened) {
  if (offered_ && opened.epoch == place_.epoch) say(Ready{opened.epoch, opened.port, opened.host});
}

void Member::take(const WorkersEnded& ended) {
  if (workers_ != Workers::running || ended.report.epoch != place_.epoch) return;
  workers_ = Workers::ended;
  say(ended.report);
}

void Member::take(const WorkersGone& gone) {
  if (gone.epoch != place_.epoch) return;
  workers_ = Workers::none;
  hard_stop_ = false;
  step_ = gone.step;
  if (stop_answer_ && link_ == Link::welcome) say(Stopped{*stop_answer_, step_});
  stop_answer_.reset();
}

// The link stays until no worker is left: the others must not start a round before.
void Member::take(const LeaveWanted& leave) {
  if (verdict_) return;
  if (link_ != Link::none) say(Leave{leave.verdict.text});
  reconnect_ = false;
  offered_ = false;
  verdict_ = leave.verdict;
  stop_workers(true, leave.verdict.text, true);
}

void Member::hear(const Welcome& welcome) {
  if (link_ != Link::greeted) return;
  link_ = Link::welcome;
  heartbeat_ = std::chrono::milliseconds(welcome.heartbeat_ms);
  dead_after_ = std::chrono::milliseconds(welcome.dead_after_ms);
  beat();
}

void Member::hear(const Refuse& refuse) { cut_off("refused by the coordinator: " + refuse.why, refuse.again); }

void Member::hear(const Assignment& assignment) {
  if (link_ != Link::welcome || verdict_ || assignment.epoch <= place_.epoch || workers_ != Workers::none) return;
  place_ = assignment;
  offered_ = true;
  step_ = -1;
  if (assignment.open_store) {
    effects_.push_back(OpenStore{assignment.epoch});
  } else {
    say(Ready{assignment.epoch, 0, ""});
  }
}

void Member::hear(const Start& start) {
  if (!offered_ || start.epoch != place_.epoch || verdict_) return;
  offered_ = false;
  workers_ = Workers::running;
  effects_.push_back(StartWorkers{place_, start});
}

void Member::hear(const Stop& stop) {
  if (stop.epoch != place_.epoch || verdict_) return;
  offered_ = false;
  if (workers_ == Workers::none) {
    say(Stopped{stop.epoch, step_});
    effects_.push_back(ShowStop{stop.why});
  } else {
    stop_answer_ = stop.epoch;
    stop_workers(true, stop.why);
  }
}

void Member::hear(const HeartbeatAnswer& answer) {
  const auto known = std::find_if(unanswered_.begin(), unanswered_.end(),
                                  [&](const auto& sent) { return sent.first == answer.number; });
  if (known == unanswered_.end()) return;
  alive_at_ = std::max(alive_at_, known->second);
  unanswered_.erase(unanswered_.begin(), known + 1);
}

void Member::hear(const Ping&) { beat(); }

void Member::hear(const Waiting& waiting) {
  if (workers_ == Workers::none) effects_.push_back(ShowWaiting{waiting});
}

void Member::hear(const Finished& finished) {
  if (verdict_) return;
  verdict_ = finished.verdict;
  offered_ = false;
  stop_workers(true, finished.verdict.text, true);
}

void Member::beat() {
  unanswered_.emplace_back(++beat_, now_);
  beat_at_ = now_;
  say(Heartbeat{beat_, workers_ == Workers::none ? 0 : place_.epoch});
}

void Member::stop_workers(bool polite, const std::string& why, bool job_over) {
  if (workers_ == Workers::none || (workers_ == Workers::stopping && (polite || hard_stop_))) return;
  workers_ = Workers::stopping;
  hard_stop_ = !polite;
  effects_.push_back(StopWorkers{place_.epoch, polite, why, job_over});
}

// The coordinator does not know us any more, or soon will not: no process of the round may outlive that.
void Member::cut_off(const std::string& why, bool again) {
  link_ = Link::none;
  offered_ = false;
  stop_answer_.reset();
  stop_workers(false, why);
  if (verdict_) return;
  if (again) {
    reconnect_ = true;
    reconnect_why_ = why;
  } else {
    verdict_ = Verdict{kExitInfrastructure, why, "", -1};
  }
}

void Member::look_at_clocks() {
  if (link_ == Link::welcome && beat_at_ + heartbeat_ <= now_) beat();
  if (link_ != Link::none && alive_at_ + dead_after_ - dead_after_ / kFencePart <= now_) {
    cut_off(fmt::format("no answer from the coordinator for {:.1f} s",
                        std::chrono::duration<double>(now_ - alive_at_).count()),
            true);
  }
}

void Member::exit_when_alone() {
  if (workers_ != Workers::none) return;
  if (verdict_) {
    exited_ = true;
    if (link_ != Link::none) say(Leave{"its workers are gone"});
    effects_.push_back(Exit{*verdict_});
  } else if (reconnect_) {
    reconnect_ = false;
    effects_.push_back(Reconnect{reconnect_why_});
  }
}

Member::Time Member::next_deadline() const {
  if (exited_ || link_ == Link::none) return Time::max();
  const auto fence = alive_at_ + dead_after_ - dead_after_ / kFencePart;
  return link_ == Link::welcome ? std::min(fence, beat_at_ + heartbeat_) : fence;
}

}  // namespace dtrun::rendezvous
