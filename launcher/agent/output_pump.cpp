#include "launcher/agent/output_pump.hpp"

#include <fcntl.h>

#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

// The stream descriptor closes what it is given; the hub's own stays the hub's.
int duplicate(int fd) {
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) throw_errno("launcher", "no descriptor for the workers' output");
  return copy;
}

}  // namespace

OutputPump::OutputPump(boost::asio::io_context& io, OutputHub& hub)
    : hub_(hub), ready_(io, duplicate(hub.event_fd())) {}

void OutputPump::start() {
  ready_.async_wait(boost::asio::posix::descriptor_base::wait_read, [this](const boost::system::error_code& error) {
    if (error) return;
    hub_.process();
    start();
  });
}

}  // namespace dtrun::launcher
