#include <fmt/format.h>
#include <sys/resource.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <csignal>
#include <cstdio>

#include "rendezvous/base/signal_descriptor.hpp"
#include "rendezvous/server/store_server.hpp"
#include "rendezvous/store_tool/commands.hpp"

namespace dtrun::rendezvous {
namespace {

// As many clients as the system lets this process have. Nothing here uses select(2).
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int serve(const std::string& host, std::uint16_t port, bool serve_1x) {
  raise_descriptor_limit();
  // One thread: Asio needs no locks.
  boost::asio::io_context io(1);
  StoreServerOptions options;
  options.host = host;
  options.port = port;
  options.serve_1x = serve_1x;
  StoreServer server(io, options);
  constexpr int kStopSignals[] = {SIGINT, SIGTERM};
  boost::asio::posix::stream_descriptor signals(io, open_signal_descriptor(kStopSignals).release());
  signals.async_wait(boost::asio::posix::descriptor_base::wait_read, [&server, &io](const boost::system::error_code&) {
    server.close();
    io.stop();
  });
  fmt::print("listening {}\n", Endpoint{server.host(), server.port()}.to_string());
  std::fflush(stdout);
  io.run();
  return 0;
}

}  // namespace dtrun::rendezvous
