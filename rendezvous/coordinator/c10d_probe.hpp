// Tells whether a c10d store listens where a coordinator was expected, for a better error.
#pragma once

#include <boost/asio/ip/tcp.hpp>

#include <chrono>
#include <functional>

namespace dtrun::rendezvous {

// Connects and asks as a client of PyTorch 2.x begins; `done` is called once, within the limit. False: no such store,
// or one before PyTorch 2.2, which does not answer that.
void probe_c10d_store(boost::asio::io_context& io, const boost::asio::ip::tcp::endpoint& at,
                      std::chrono::milliseconds limit, std::function<void(bool is_store)> done);

}  // namespace dtrun::rendezvous
