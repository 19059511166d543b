#include "rendezvous/base/signal_descriptor.hpp"

#include <pthread.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <csignal>

#include "rendezvous/base/error.hpp"

namespace dtrun {

UniqueFd open_signal_descriptor(std::span<const int> signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : signals) ::sigaddset(&set, number);
  // Before the block: without a descriptor nobody would ever hear them.
  UniqueFd fd(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd) throw_errno("signals", "no descriptor for signals");
  if (const int error = ::pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0)
    throw_errno("signals", "signals cannot be blocked", error);
  return fd;
}

int next_signal(int descriptor) noexcept {
  signalfd_siginfo info{};
  ssize_t size = 0;
  do {
    size = ::read(descriptor, &info, sizeof info);
  } while (size < 0 && errno == EINTR);
  return size == static_cast<ssize_t>(sizeof info) ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace dtrun
