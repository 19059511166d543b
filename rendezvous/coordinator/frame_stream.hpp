// One connection between an agent and the coordinator: whole messages in, whole messages out.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/membership/message_text.hpp"

namespace dtrun::rendezvous {

// Why a stream ended that the peer closed, or whose connection broke.
inline constexpr std::string_view kConnectionEnded = "its connection ended";

// Owner: whoever holds the shared_ptr, and its pending operations; one thread. It ends once, with `ended`: the peer
// closed, broke the protocol, or does not read what is sent (256 KiB may wait). Nothing is called after close().
class FrameStream : public std::enable_shared_from_this<FrameStream> {
 public:
  struct Listener {
    std::function<void(std::string_view message)> message;  // throws MessageError when it is not one
    std::function<void(const std::string& why)> ended;
  };
  explicit FrameStream(boost::asio::ip::tcp::socket socket, std::size_t max_message = kMaxMessageBytes);

  void start(Listener listener);
  // From the next message on.
  void pass_to(Listener listener, std::size_t max_message = kMaxMessageBytes);
  // Numeric; empty when the connection is gone.
  std::string local_address() const;
  int native_handle() { return socket_.native_handle(); }
  void send(std::string frame);
  // Sends what waits, for a second at most, and closes; nothing is heard any more.
  void finish();
  void close();

 private:
  void read();
  void write();
  void take(std::string_view bytes);
  void end(const std::string& why);

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer farewell_;
  std::shared_ptr<const Listener> listener_;  // shared with the call in progress, which may end this stream
  MessageSplitter splitter_;
  std::array<char, 4096> input_{};
  std::string waiting_, sending_;
  bool finishing_ = false, open_ = true;
};

}  // namespace dtrun::rendezvous
