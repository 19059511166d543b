// The coordinator on the network, in the agent that owns the job's endpoint.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/coordinator/entrance.hpp"
#include "rendezvous/coordinator/frame_stream.hpp"
#include "rendezvous/membership/coordinator.hpp"

namespace dtrun::rendezvous {

// Owner: the agent, its thread and io_context. Who connects has to get through the Entrance before the job hears of it.
// The constructor throws UsageError (not an address of this machine) or SystemError (the port is taken).
class CoordinatorServer {
 public:
  struct Callbacks {
    std::function<void(const std::string& line)> note;  // for the log
    std::function<void()> over;                         // everybody has gone
  };
  CoordinatorServer(boost::asio::io_context& io, JobRules rules, const std::string& host, std::uint16_t port,
                    Callbacks callbacks, std::optional<JobToken> token = {});
  ~CoordinatorServer();

  std::uint16_t port() const { return port_; }
  // One line when anybody on the network can join: no token, and not the loopback. Else empty.
  const std::string& warning() const { return warning_; }
  // An address of this machine at which an agent of another one has reached it; empty: none has.
  std::string reached_at() const;
  const Coordinator& state() const { return coordinator_; }
  std::uint64_t messages() const { return messages_; }  // sent and received so far
  // This agent must end, and the job with it.
  void host_stops(Verdict verdict);

 private:
  struct Peer {
    std::shared_ptr<FrameStream> stream;
    std::string address;
  };
  void accept();
  void admit(Admitted admitted);
  void hear(std::uint64_t id, std::string_view message);
  void lose(std::uint64_t id, const std::string& why);
  void step(const CoordinatorEvent& event);
  void arm_timer();

  boost::asio::io_context& io_;
  const std::size_t connection_limit_;
  Coordinator coordinator_;
  Callbacks callbacks_;
  Entrance entrance_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer timer_, pause_;
  Clock::time_point timer_at_ = Clock::time_point::max();
  std::map<std::uint64_t, Peer> peers_;
  std::uint64_t next_id_ = 0, messages_ = 0;
  std::uint16_t port_ = 0;
  std::string warning_;
  bool told_over_ = false;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // handlers look whether the server still lives
};

}  // namespace dtrun::rendezvous
