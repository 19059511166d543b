// A socket in the tests' event loop that says what it is told and keeps what it hears: strangers, impostors.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/membership/message_text.hpp"

namespace dtrun::tests {

class RawPeer {
 public:
  using tcp = boost::asio::ip::tcp;
  RawPeer(boost::asio::io_context& io, std::uint16_t port) : RawPeer(tcp::socket(io)) {
    state_->socket.connect({boost::asio::ip::make_address("127.0.0.1"), port});
    read(state_);
  }
  explicit RawPeer(tcp::socket socket) : state_(std::make_shared<State>(std::move(socket))) {
    if (state_->socket.is_open()) read(state_);
  }
  ~RawPeer() {
    boost::system::error_code ignored;
    state_->socket.close(ignored);
  }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  void send(const std::string& bytes) {
    boost::system::error_code ignored;
    boost::asio::write(state_->socket, boost::asio::buffer(bytes), ignored);
  }
  bool closed() const { return state_->closed; }
  const std::string& heard() const { return state_->heard; }
  // Without its length, the n-th from 0.
  std::optional<std::string> message(std::size_t n) const {
    rendezvous::MessageSplitter splitter;
    std::string_view input = state_->heard;
    for (; n > 0; --n)
      if (!splitter.next(input)) return {};
    return splitter.next(input);
  }

 private:
  struct State {
    explicit State(tcp::socket s) : socket(std::move(s)) {}
    tcp::socket socket;
    std::array<char, 1024> piece{};
    std::string heard;
    bool closed = false;
  };
  static void read(const std::shared_ptr<State>& state) {
    state->socket.async_read_some(boost::asio::buffer(state->piece),
                                  [state](const boost::system::error_code& error, std::size_t size) {
                                    state->heard.append(state->piece.data(), size);
                                    if (error) {
                                      state->closed = true;
                                    } else {
                                      read(state);
                                    }
                                  });
  }
  std::shared_ptr<State> state_;
};

// Runs the event loop until the condition holds, or for 10 s.
template <class Condition>
bool run_until(boost::asio::io_context& io, Condition condition, Clock::duration limit = std::chrono::seconds(10)) {
  const auto deadline = Deadline::after(limit);
  while (!condition() && !deadline.passed()) io.run_one_for(std::chrono::milliseconds(20));
  return condition();
}

}  // namespace dtrun::tests
