// Where connections to the coordinator wait until they have said who they are.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/peer_user.hpp"
#include "rendezvous/coordinator/frame_stream.hpp"
#include "rendezvous/coordinator/handshake.hpp"

namespace dtrun::rendezvous {

struct EntranceLimits {
  std::size_t connections = 64;  // above it the one that has waited longest is closed
  std::chrono::milliseconds patience{5000};
};

// Whoever has proved to know the token; in a job without one, whoever has begun as an agent does. A process of this
// machine must belong to the job's user, or root.
struct Admitted {
  std::shared_ptr<FrameStream> stream;
  std::string address;
  std::optional<ToCoordinator> first;  // said already
};

// Owner: CoordinatorServer, its thread. What it holds of all strangers together is bounded, and so are its notes: one
// line for each address and reason, and at most kMaxNotes in ten minutes.
class Entrance {
 public:
  using Admit = std::function<void(Admitted)>;
  using Note = std::function<void(const std::string& line)>;
  Entrance(boost::asio::io_context& io, std::optional<JobToken> token, EntranceLimits limits, Admit admit, Note note);
  ~Entrance();

  void add(boost::asio::ip::tcp::socket socket);

 private:
  static constexpr std::size_t kMaxNotes = 64;
  struct Stranger {
    std::shared_ptr<FrameStream> stream;
    SocketEnd own, peer;
    CoordinatorHandshake handshake;
    Clock::time_point until;
  };
  void hear(std::uint64_t id, std::string_view message);
  void refuse(std::uint64_t id, const std::string& why);
  void note(const std::string& line);
  void arm_timer();
  void look_at_clock();

  const std::optional<JobToken> token_;
  const EntranceLimits limits_;
  const Admit admit_;
  const Note note_;
  boost::asio::steady_timer timer_;
  bool timer_armed_ = false;
  std::map<std::uint64_t, Stranger> strangers_;  // in the order of their arrival
  std::uint64_t next_id_ = 0;
  std::set<std::string> noted_;
  Clock::time_point noted_since_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace dtrun::rendezvous
