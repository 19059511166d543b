// A forwarder in front of the node that hosts a job. It dies after a given number of bytes: every moment at which a
// host can go.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace dtrun::tests {

// For one connection. Lives in the event loop of the test, on 127.0.0.1.
class CutLine {
 public:
  enum class Direction { to_host, from_host };
  static constexpr std::size_t kNever = SIZE_MAX;

  CutLine(boost::asio::io_context& io, std::uint16_t host, Direction counted, std::size_t limit)
      : acceptor_(io, {boost::asio::ip::address_v4::loopback(), 0}),
        guest_(io),
        host_(io),
        host_at_(boost::asio::ip::address_v4::loopback(), host),
        counted_(counted),
        left_(limit) {
    port_ = acceptor_.local_endpoint().port();
    if (left_ == 0) {
      cut();
      return;
    }
    acceptor_.async_accept(guest_, [this](const boost::system::error_code& error) {
      if (error || is_cut_) return;
      host_.connect(host_at_);
      forward(guest_, host_, Direction::to_host, there_);
      forward(host_, guest_, Direction::from_host, back_);
    });
  }

  std::uint16_t port() const { return port_; }

  // The host is gone, as it would go itself: both connections, and nobody listens any more.
  void cut() {
    is_cut_ = true;
    for (auto* socket : {&guest_, &host_}) close(*socket);
    boost::system::error_code ignored;
    acceptor_.close(ignored);
  }

 private:
  using Socket = boost::asio::ip::tcp::socket;
  using Buffer = std::array<char, 4096>;

  static void close(Socket& socket) {
    boost::system::error_code ignored;
    socket.close(ignored);
  }

  void forward(Socket& from, Socket& to, Direction direction, Buffer& buffer) {
    from.async_read_some(boost::asio::buffer(buffer), [this, &from, &to, direction, &buffer](
                                                          const boost::system::error_code& error, std::size_t size) {
      if (is_cut_) return;
      if (error) return close(to);
      if (direction == counted_) {
        size = std::min(size, left_);
        left_ -= size;
      }
      boost::system::error_code ignored;
      boost::asio::write(to, boost::asio::buffer(buffer, size), ignored);
      if (left_ == 0) return cut();
      forward(from, to, direction, buffer);
    });
  }

  boost::asio::ip::tcp::acceptor acceptor_;
  Socket guest_, host_;
  const boost::asio::ip::tcp::endpoint host_at_;
  const Direction counted_;
  std::size_t left_;
  std::uint16_t port_ = 0;
  bool is_cut_ = false;
  Buffer there_, back_;
};

}  // namespace dtrun::tests
