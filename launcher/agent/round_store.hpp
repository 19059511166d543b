// The workers' store, one per attempt.
#pragma once

#include <memory>

#include "launcher/config/launch_config.hpp"

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
  RoundStore(boost::asio::io_context& io, SingleNodeStore place);
  ~RoundStore();

  // A fresh store on a fresh port, or on the one port that was asked for. Returns the port. The store of the attempt
  // before lives until here, so call it when that attempt's workers are gone. Throws UsageError (not an address of this
  // machine), SystemError (port taken).
  int open();

 private:
  boost::asio::io_context& io_;
  const SingleNodeStore place_;
  std::unique_ptr<rendezvous::StoreServer> server_;
};

}  // namespace dtrun::launcher
