// Runs the output hub from the agent's event loop.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "launcher/logs/output_hub.hpp"

namespace dtrun::launcher {

// Owner: the agent, its thread; the hub outlives it. Throws SystemError.
class OutputPump {
 public:
  OutputPump(boost::asio::io_context& io, OutputHub& hub);
  // From here on the hub is served whenever it has something to do.
  void start();

 private:
  OutputHub& hub_;
  boost::asio::posix::stream_descriptor ready_;
};

}  // namespace dtrun::launcher
