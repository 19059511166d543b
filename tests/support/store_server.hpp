// A StoreServer on a thread of its own, on a port that the system chose.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <thread>

#include "rendezvous/server/store_server.hpp"

namespace dtrun::tests {

class StoreOnThread {
 public:
  StoreOnThread() : server_(io_, {}), port_(server_.port()), thread_([this] { io_.run(); }) {}
  ~StoreOnThread() {
    boost::asio::post(io_, [this] {
      server_.close();
      io_.stop();
    });
    thread_.join();
  }
  std::uint16_t port() const { return port_; }

 private:
  boost::asio::io_context io_{1};
  rendezvous::StoreServer server_;
  std::uint16_t port_;
  std::thread thread_;
};

}  // namespace dtrun::tests
