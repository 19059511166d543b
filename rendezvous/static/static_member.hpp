// A node's part in a job of the static backend: the store at the endpoint (node 0 hosts it), and the conversation with
// it on a thread of its own, so that nothing blocks the event loop that serves the store.
#pragma once

#include <boost/asio/steady_timer.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/static/static_session.hpp"

namespace dtrun::rendezvous {

class StoreServer;

// Called on the io_context's thread, never from inside a call of StaticMember.
struct StaticOrders {
  std::function<void(const StaticPlace&)> placed;
  std::function<void(const std::string& line)> note;  // for the user
  std::function<void(const StaticFailure&)> failed;   // the last call: no join, or a job that did not end well
  std::function<void()> over;                         // the last call: every node's workers ended well
};

// Owner: the agent; one thread, the one that runs the io_context. The store is closed by leave() or the destructor. The
// destructor waits a moment for the helper thread, and leaves it behind when it is in a call of the system that cannot
// be ended (a name server that does not answer).
class StaticMember {
 public:
  StaticMember(boost::asio::io_context& io, StaticJob job, StaticOrders orders);
  ~StaticMember();
  StaticMember(const StaticMember&) = delete;
  StaticMember& operator=(const StaticMember&) = delete;

  // Then placed() or failed(). Opens the store first when this is node 0: throws SystemError (port taken).
  void join();
  // This node's workers are to start again. Then placed(), with the same ranks, or failed() once node 0 is gone.
  void again();
  // All workers of this node ended well. Then over() or failed(); node 0 comes last, when nobody uses its store.
  void succeeded();
  // No call comes after this, and it does not block. `exit_code` above 0: the others are told, if ranks were assigned.
  void leave(int exit_code);
  // Of the store that this node hosts; 0 when it hosts none.
  std::uint16_t port() const;

 private:
  struct Line;
  void open_store();
  void beat_later();
  void linger(Clock::time_point until, std::function<void()> then);

  boost::asio::io_context& io_;
  const StaticJob job_;
  const StaticOrders orders_;
  std::unique_ptr<StoreServer> server_;
  Endpoint store_at_;
  std::string remark_;
  std::optional<StaticPlace> place_;
  bool in_barrier_ = false;
  boost::asio::steady_timer timer_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // until leave()
  std::shared_ptr<Line> line_;                             // shared with the helper thread, which may outlive us
};

}  // namespace dtrun::rendezvous
