// An agent's way to the coordinator: finds it, connects, proves the job's token, connects again.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/endpoint.hpp"
#include "rendezvous/coordinator/frame_stream.hpp"
#include "rendezvous/coordinator/handshake.hpp"
#include "rendezvous/coordinator/name_lookup.hpp"

namespace dtrun::rendezvous {

// Owner: MembershipClient, one thread. Names are resolved off the event loop, again for every try. Whoever answers and
// is no coordinator of this job is a failure at once, with what it is instead.
class CoordinatorLink {
 public:
  struct Callbacks {
    std::function<void()> connected;  // with a token: both sides have proved that they know it
    std::function<void(const ToAgent& message)> said;
    std::function<void(const std::string& why)> lost;  // of a connection that was made
    // No connection in time, none that is of use; or `refused`, where the caller said that it wants to hear of that at
    // once. A whole sentence that names the endpoint.
    std::function<void(const std::string& why)> failed;
  };
  // The job is what a token is proved for.
  CoordinatorLink(boost::asio::io_context& io, Endpoint coordinator, Callbacks callbacks, std::string job = {},
                  std::optional<JobToken> token = {});
  ~CoordinatorLink();

  // Tries until the deadline, after a while four times a second. `give_up_when_refused`: nobody listens there, so
  // nobody will.
  void connect(Deadline deadline, bool give_up_when_refused);
  void say(const ToCoordinator& message);
  void finish();  // what was said goes out, then the connection is closed
  // Of this end of the connection: where the coordinator's machine reaches us.
  std::string local_address() const { return local_address_; }
  // Of the connection; -1 without one.
  int native_handle() { return stream_ ? stream_->native_handle() : -1; }
  // What kept the last try from succeeding, such as "refused", "no route to host", "no answer (timed out)", "the name X
  // is not known"; of the first one, while it lasts, "no answer so far".
  const std::string& problem() const { return problem_; }

 private:
  enum class Nonsense { closed, silent, garbage };

  void try_once();
  void connect_to(const NameLookup::Addresses& found);
  void use(boost::asio::ip::tcp::socket socket);
  FrameStream::Listener listener();
  void hear(std::string_view message);
  void hear_handshake(std::string_view message);
  void ended(const std::string& why);
  void find_out(Nonsense kind, const std::string& why);
  void missed(const std::string& what, bool refused = false);
  void give_up();
  void fail_for_good(const std::string& what);

  boost::asio::io_context& io_;
  const Endpoint coordinator_;
  Callbacks callbacks_;
  const std::string job_;
  const std::optional<JobToken> token_;
  NameLookup lookup_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<boost::asio::ip::tcp::socket> trying_;
  std::shared_ptr<FrameStream> stream_;
  std::optional<AgentHandshake> handshake_;  // while it lasts
  boost::asio::ip::tcp::endpoint remote_;
  Deadline deadline_{Clock::time_point::min()};
  Clock::duration pause_{};  // before the next try
  bool give_up_when_refused_ = false;
  bool heard_ = false;         // something sensible, on this connection
  bool ever_heard_ = false;    // a coordinator, on any
  bool mute_ = false;          // the last connection was closed without an answer
  std::uint64_t attempt_ = 0;  // what belongs to an earlier one is stale
  std::string local_address_, problem_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace dtrun::rendezvous
