// An agent's way to the coordinator: finds it, connects, connects again.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <memory>
#include <string>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/endpoint.hpp"
#include "rendezvous/coordinator/frame_stream.hpp"

namespace dtrun::rendezvous {

// Owner: MembershipClient, one thread. Names are resolved off the event loop, again for every try.
class CoordinatorLink {
 public:
  struct Callbacks {
    std::function<void()> connected;
    std::function<void(const ToAgent& message)> said;
    std::function<void(const std::string& why)> lost;  // of a connection that was made
    // No connection in time; or `refused`, where the caller said that it wants to hear of that at once.
    std::function<void(const std::string& why)> failed;
  };
  CoordinatorLink(boost::asio::io_context& io, Endpoint coordinator, Callbacks callbacks);
  ~CoordinatorLink();

  // Tries until the deadline, four times a second. `give_up_when_refused`: nobody listens there, so nobody will.
  void connect(Deadline deadline, bool give_up_when_refused);
  void say(const ToCoordinator& message);
  void finish();  // what was said goes out, then the connection is closed
  // Of this end of the connection: where the coordinator's machine reaches us.
  std::string local_address() const { return local_address_; }
  // What kept the last try from succeeding: "name not known", "refused", "no answer".
  const std::string& problem() const { return problem_; }

 private:
  void try_once();
  void connect_to(boost::asio::ip::tcp::resolver::results_type found);
  void use(boost::asio::ip::tcp::socket socket);
  void missed(const boost::system::error_code& error, const std::string& what);

  boost::asio::io_context& io_;
  const Endpoint coordinator_;
  Callbacks callbacks_;
  boost::asio::ip::tcp::resolver resolver_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<boost::asio::ip::tcp::socket> trying_;
  std::shared_ptr<FrameStream> stream_;
  Deadline deadline_{Clock::time_point::min()};
  bool give_up_when_refused_ = false;
  std::string local_address_, problem_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace dtrun::rendezvous
