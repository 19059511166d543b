#include "tests/integration/store/fixture.hpp"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <fstream>
#include <future>
#include <stdexcept>
#include <thread>

#include "rendezvous/base/clock.hpp"

namespace store_test {

using namespace dtrun;
using namespace dtrun::rendezvous;

struct TestServer::Inside {
  boost::asio::io_context io{1};
  StoreServer server;
  std::thread thread;
  explicit Inside(const StoreServerOptions& options) : server(io, options), thread([this] { io.run(); }) {}
};

TestServer::TestServer(StoreServerOptions options) : inside_(std::make_unique<Inside>(options)) {}

TestServer::~TestServer() {
  boost::asio::post(inside_->io, [this] {
    inside_->server.close();
    inside_->io.stop();
  });
  inside_->thread.join();
}

std::uint16_t TestServer::port() const { return inside_->server.port(); }

std::size_t TestServer::connections() {
  std::promise<std::size_t> answer;
  boost::asio::post(inside_->io, [&] { answer.set_value(inside_->server.connections()); });
  return answer.get_future().get();
}

void TestServer::settle() {
  // From one turn of the loop to the one after the next it has looked at its sockets.
  for (int turn = 0; turn < 4; ++turn) connections();
}

RawClient::RawClient(std::uint16_t port, int receive_buffer)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (!socket_) throw std::runtime_error("socket");
  if (receive_buffer > 0) ::setsockopt(socket_.value(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_.value(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("connect");
  const int on = 1;
  ::setsockopt(socket_.value(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const timeval limit{10, 0};
  ::setsockopt(socket_.value(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

RawClient RawClient::v2(std::uint16_t port, int receive_buffer) {
  RawClient client(port, receive_buffer);
  client.request([](RequestWriter& writer) {
    writer.validate();
    writer.ping(5);
  });
  if (client.receive(4) != std::string("\5\0\0\0", 4)) throw std::runtime_error("no answer to PING");
  return client;
}

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto sent = ::send(socket_.value(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

std::string RawClient::receive(std::size_t size, int milliseconds) {
  const auto deadline = Deadline::after(std::chrono::milliseconds(milliseconds));
  std::string got;
  while (got.size() < size) {
    pollfd one{socket_.value(), POLLIN, 0};
    if (::poll(&one, 1, deadline.poll_milliseconds()) <= 0) break;
    char buffer[65536];
    const auto part = ::recv(socket_.value(), buffer, std::min(sizeof buffer, size - got.size()), 0);
    if (part <= 0) break;
    got.append(buffer, static_cast<std::size_t>(part));
  }
  return got;
}

bool RawClient::closed_within(int milliseconds) {
  const auto deadline = Deadline::after(std::chrono::milliseconds(milliseconds));
  for (;;) {
    pollfd one{socket_.value(), POLLIN, 0};
    if (::poll(&one, 1, deadline.poll_milliseconds()) <= 0) return false;
    char buffer[65536];
    if (::recv(socket_.value(), buffer, sizeof buffer, 0) <= 0) return true;
  }
}

void RawClient::half_close() { ::shutdown(socket_.value(), SHUT_WR); }

void RawClient::reset() {
  const linger hard{1, 0};
  ::setsockopt(socket_.value(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  socket_.reset();
}

std::size_t resident_bytes(int pid) {
  std::ifstream file("/proc/" + (pid ? std::to_string(pid) : std::string("self")) + "/statm");
  std::size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

double connect_set_get_p99(std::uint16_t port, int rounds) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = Clock::now();
    auto client = RawClient::v2(port);
    client.request([](RequestWriter& writer) {
      writer.key_value(Opcode::set, "/probe", "value");
      writer.key(Opcode::get, "/probe");
    });
    if (client.receive(13).size() != 13) return 1e9;
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() * 99 / 100];
}

}  // namespace store_test
