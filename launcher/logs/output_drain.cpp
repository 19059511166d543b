// The end of a run: what is still in the pipes is taken, and the console's readers get their time.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "launcher/logs/output_hub_impl.hpp"

namespace dtrun::launcher {

bool OutputHub::Impl::wait_for_pipes(Deadline deadline) {
  const auto open = [](const auto& entry) { return entry.second.out.pipe || entry.second.error.pipe; };
  while (std::any_of(captures.begin(), captures.end(), open)) {
    if (deadline.passed()) return false;
    pollfd ready{epoll.value(), POLLIN, 0};
    ::poll(&ready, 1, deadline.poll_milliseconds());
    process();
  }
  return true;
}

// False when something was given up.
bool OutputHub::Impl::wait_for_readers(const std::function<bool()>& cut_short) {
  bool complete = true;
  // Where files have it all, a reader that stood still before has had its time.
  for (auto* console : consoles()) {
    if (!console->sink.only_copies()) console->last_progress = Clock::now();
  }
  for (;;) {
    const bool cut = cut_short && cut_short();
    for (auto* console : consoles()) {
      flush(*console);
      if (console->sink.empty()) continue;
      const auto patience = console->sink.only_copies() ? options.final_patience_with_copy : options.final_patience;
      const auto waited = Clock::now() - console->last_progress;
      if (!cut && waited < patience) continue;
      complete = false;
      give_up(*console,
              cut ? std::string("dtrun was told to stop")
                  : fmt::format("its reader took nothing for {:.3g} s", std::chrono::duration<double>(waited).count()));
    }
    if (out.sink.empty() && error.sink.empty()) return complete;
    pollfd ready{epoll.value(), POLLIN, 0};
    ::poll(&ready, 1, 50);
    process();
  }
}

void OutputHub::Impl::give_up(Console& console, std::string_view why) {
  const auto before = console.sink.lost_bytes();
  const bool copies = console.sink.only_copies();
  console.sink.abandon();
  watch(console, false);
  // To the console that is stuck itself it goes only if there is room right now.
  notice(fmt::format("dtrun: {} bytes of {} were not written{}: {}", console.sink.lost_bytes() - before, console.name,
                     copies ? " there (log files are complete)" : "", why));
  if (&console == &error_console()) {
    console.sink.abandon();
    watch(console, false);
  }
}

bool OutputHub::drain(Deadline pipes_deadline, const std::function<bool()>& cut_short) {
  bool complete = impl_->wait_for_pipes(pipes_deadline);
  for (const auto& [id, capture] : impl_->captures) detach(id);
  for (auto* console : impl_->consoles()) impl_->tell_skipped(*console);
  // Written to a full disk: known now. What the loop below gives up is told there.
  for (auto* console : impl_->consoles()) {
    impl_->flush(*console);
    const int code = console->sink.last_error();
    if (code == 0 || code == EPIPE || console->sink.lost_bytes() == 0) continue;
    impl_->notice(fmt::format("dtrun: {} bytes of {} could not be written: {}", console->sink.lost_bytes(),
                              console->name, std::generic_category().message(code)));
  }
  return impl_->wait_for_readers(cut_short) && complete;
}

}  // namespace dtrun::launcher
