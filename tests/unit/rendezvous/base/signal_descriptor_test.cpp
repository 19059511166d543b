#include "rendezvous/base/signal_descriptor.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>

#include "tests/catch.hpp"

using namespace dtrun;

TEST_CASE("a signal is read from its descriptor and does nothing else", "[signals]") {
  constexpr int kSignals[] = {SIGTERM, SIGUSR2};
  const auto fd = open_signal_descriptor(kSignals);
  CHECK(next_signal(fd.value()) == 0);
  ::kill(::getpid(), SIGTERM);
  ::kill(::getpid(), SIGUSR2);
  pollfd waiting{fd.value(), POLLIN, 0};
  REQUIRE(::poll(&waiting, 1, 5000) == 1);
  const int first = next_signal(fd.value());
  const int second = next_signal(fd.value());
  CHECK(first + second == SIGTERM + SIGUSR2);
  CHECK(next_signal(fd.value()) == 0);
  CHECK((::fcntl(fd.value(), F_GETFD) & FD_CLOEXEC) != 0);
}
