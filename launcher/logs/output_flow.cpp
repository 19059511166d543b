// Pipes and consoles in step: what a console cannot take now holds its pipes back, or is dropped where a file has it.
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>

#include "launcher/logs/output_hub_impl.hpp"

namespace dtrun::launcher {
namespace {

// Long enough for a reader that waits for a processor on a busy machine; paid once per standstill, not per line.
constexpr auto kPatience = std::chrono::milliseconds(200);

}  // namespace

void OutputHub::Impl::flush(Console& console) {
  if (console.sink.flush() || console.sink.empty()) console.last_progress = Clock::now();
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
    arm_timer();
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

void OutputHub::Impl::arm_timer() {
  if (!timer) {
    timer.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    epoll_event event{.events = EPOLLIN, .data = {.ptr = &timer}};
    ::epoll_ctl(epoll.value(), EPOLL_CTL_ADD, timer.value(), &event);
  }
  itimerspec when{};
  when.it_value.tv_nsec = std::chrono::nanoseconds(kPatience).count();
  ::timerfd_settime(timer.value(), 0, &when, nullptr);
}

void OutputHub::Impl::timer_fired() {
  std::uint64_t expirations = 0;
  if (::read(timer.value(), &expirations, sizeof expirations) < 0) return;
  for (auto* console : consoles()) {
    if (!console->held || console->sink.dropping()) continue;
    if (Clock::now() - console->last_progress >= kPatience) {
      console->sink.set_dropping(true);
      pause_by_rule(*console);
    } else {
      arm_timer();
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
  notice(fmt::format("dtrun: the reader of {} was too slow: {} lines dropped there (log files are complete)",
                     console.name, lines));
}

}  // namespace dtrun::launcher
