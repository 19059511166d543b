// The workers' store, one per attempt.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace boost::asio {
class io_context;
}
namespace dtrun::rendezvous {
class StoreServer;
}

namespace dtrun::launcher {

// An attempt never sees a key of the one before: torchrun's restarts read stale addresses and fail about every second
// time. Owner: the agent, its thread.
class RoundStore {
 public:
  explicit RoundStore(boost::asio::io_context& io);
  ~RoundStore();

  // A fresh store; `port` 0 is a fresh port. Returns the port. The store of the attempt before lives until here, so
  // call it when that attempt's workers are gone. Throws UsageError (not an address of this machine), SystemError
  // (port taken).
  int open(const std::string& host, std::uint16_t port);
  void close();

 private:
  boost::asio::io_context& io_;
  std::unique_ptr<rendezvous::StoreServer> server_;
};

}  // namespace dtrun::launcher
