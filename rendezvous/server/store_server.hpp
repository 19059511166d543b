// The TCP store daemon: any PyTorch client from 1.13 on, and TcpStore, can connect to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "rendezvous/server/store_limits.hpp"

namespace boost::asio {
class io_context;
}

namespace dtrun::rendezvous {

struct StoreServerOptions {
  // The one address that is bound; a name is resolved once, by the constructor. "0.0.0.0" or "::" must be asked for.
  std::string host = "127.0.0.1";
  // 0: any free port.
  std::uint16_t port = 0;
  // Off: only clients that open with VALIDATE (PyTorch 2.x and dtrun) are served, and no silent connection is kept.
  bool serve_1x = true;
  StoreLimits limits;
};

// Listens from construction on and serves whenever the io_context runs. Owned by one thread, the one that runs the
// io_context; never blocks it. A fault of a client closes that client only. The constructor throws UsageError (host is
// not an address of this machine) or SystemError (port taken).
class StoreServer {
 public:
  StoreServer(boost::asio::io_context& io, StoreServerOptions options);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // The bound address, numeric.
  std::string host() const;
  std::uint16_t port() const;
  std::size_t connections() const;
  // Closes the listener and every client at once. Safe to call twice; the destructor calls it.
  void close();

 private:
  class Daemon;
  // Shared with the handlers that the io_context still holds after close().
  std::shared_ptr<Daemon> daemon_;
};

}  // namespace dtrun::rendezvous
