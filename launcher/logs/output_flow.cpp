// Pipes and consoles in step: what a console cannot take now holds its pipes back, or is dropped where a file has it.
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "launcher/logs/output_hub_impl.hpp"
#include "rendezvous/base/counted.hpp"

namespace dtrun::launcher {
namespace {

// How long a reader may take nothing before lines that files have, too, are dropped: long enough for one that waits for
// a processor, and a twentieth of the time so far at most, so that it hardly slows down a worker that writes a lot.
constexpr auto kMostPatience = std::chrono::milliseconds(100);
constexpr auto kLeastPatience = std::chrono::milliseconds(10);

}  // namespace

void OutputHub::Impl::flush(Console& console) {
  // Not watched until now: there was nothing to take before.
  if (console.sink.flush() || console.sink.empty() || !console.watched) console.last_progress = Clock::now();
  watch(console, !console.sink.empty());
  if (console.sink.roomy()) {
    hold(console, false);
  } else if (console.sink.full() && !console.held) {
    hold(console, true);
  }
  tell_error(console);
}

// Adds and removes instead of changing the mask: EPOLLHUP and EPOLLERR come with any mask, and would keep the loop
// busy.
void OutputHub::Impl::watch(Console& console, bool wanted) {
  const int fd = console.sink.pollable_fd();
  if (wanted == console.watched || fd < 0) return;
  epoll_event event{.events = EPOLLOUT, .data = {.ptr = &console}};
  ::epoll_ctl(epoll.value(), wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &event);
  console.watched = wanted;
}

void OutputHub::Impl::hold(Console& console, bool held) {
  if (console.held == held) return;
  console.held = held;
  console.sink.set_dropping(false);
  pause_by_rule(console);
  if (held) {
    arm_timer(patience_with(console));
  } else {
    tell_skipped(console);
  }
}

void OutputHub::Impl::pause_by_rule(Console& console) {
  for (auto& [id, capture] : captures) {
    for (auto* stream : {&capture.out, &capture.error}) {
      if (stream->console == &console)
        set_paused(*stream, console.held && !(console.sink.dropping() && stream->has_copy()));
    }
  }
}

void OutputHub::Impl::set_paused(Stream& stream, bool paused) {
  if (stream.paused == paused || !stream.pipe) return;
  stream.paused = paused;
  epoll_event event{.events = EPOLLIN, .data = {.ptr = &stream}};
  ::epoll_ctl(epoll.value(), paused ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, stream.pipe.value(), &event);
}

Clock::duration OutputHub::Impl::patience_with(const Console& console) const {
  return std::clamp<Clock::duration>((console.last_progress - start) / 20, kLeastPatience, kMostPatience);
}

void OutputHub::Impl::arm_timer(Clock::duration delay) {
  if (!timer) {
    timer.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    epoll_event event{.events = EPOLLIN, .data = {.ptr = &timer}};
    ::epoll_ctl(epoll.value(), EPOLL_CTL_ADD, timer.value(), &event);
  }
  itimerspec when{};
  when.it_value.tv_nsec = std::chrono::nanoseconds(delay).count();
  ::timerfd_settime(timer.value(), 0, &when, nullptr);
}

void OutputHub::Impl::timer_fired() {
  std::uint64_t expirations = 0;
  if (::read(timer.value(), &expirations, sizeof expirations) < 0) return;
  for (auto* console : consoles()) {
    if (!console->held || console->sink.dropping()) continue;
    if (Clock::now() - console->last_progress >= patience_with(*console)) {
      console->sink.set_dropping(true);
      pause_by_rule(*console);
    } else {
      arm_timer(patience_with(*console));
    }
  }
}

void OutputHub::Impl::tell_error(Console& console) {
  const int code = console.sink.take_error();
  if (code == 0) return;
  bool copies = true, shown = false;
  for (const auto& [id, capture] : captures) {
    for (const auto* stream : {&capture.out, &capture.error}) {
      if (stream->console != &console) continue;
      shown = true;
      copies = copies && stream->has_copy();
    }
  }
  const auto* where = copies && shown ? "only in the log files" : "lost";
  if (code == EPIPE) {
    notice(fmt::format("dtrun: nobody reads {} any more; the job goes on, its output is {}", console.name, where));
  } else {
    notice(fmt::format("dtrun: {} cannot be written: {}; the job goes on, its output is {} until it can", console.name,
                       std::generic_category().message(code), where));
  }
}

void OutputHub::Impl::tell_skipped(Console& console) {
  const auto lines = console.sink.take_skipped_lines();
  if (lines == 0) return;
  notice(fmt::format("dtrun: the reader of {} was too slow: {} dropped there (log files are complete)", console.name,
                     counted(lines, "line")));
}

}  // namespace dtrun::launcher
