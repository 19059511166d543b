// The addresses of a host, asked for off the event loop.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/base/endpoint.hpp"

namespace dtrun::rendezvous {

// Asio's resolver waits, when its io_context ends, for a name server that does not answer; here that call is left
// behind on a thread of its own, of which there is one at most. Numeric addresses and "localhost" need none. Owner: an
// object of the event loop, its thread.
class NameLookup {
 public:
  using Addresses = std::vector<boost::asio::ip::tcp::endpoint>;
  // `problem` is empty, or "the name X is not known" with the reason.
  using Done = std::function<void(const std::string& problem, const Addresses& addresses)>;

  explicit NameLookup(boost::asio::io_context& io);
  ~NameLookup();
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;

  // One at a time. `done` is called once, not from inside start(), unless cancel() comes first.
  void start(const Endpoint& wanted, std::chrono::milliseconds limit, Done done);
  void cancel();

 private:
  struct Query;
  void finish(const std::string& problem, const Addresses& addresses);
  void look_at(const std::shared_ptr<Query>& query);

  boost::asio::io_context& io_;
  boost::asio::steady_timer timer_;
  Done done_;
  std::shared_ptr<Query> query_;  // its thread may still be in the system's call after a cancel
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace dtrun::rendezvous
