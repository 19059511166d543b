#include "rendezvous/coordinator/c10d_probe.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace dtrun::rendezvous {
namespace {

namespace asio = boost::asio;
using namespace std::string_view_literals;

constexpr auto kAnswer = "dtrn"sv;
constexpr auto kQuestion =
    "\x00\xce\xf7\x85\x3c\x0d"
    "dtrn"sv;  // VALIDATE with its magic number, PING; answered by what was pinged

struct Probe {
  Probe(asio::io_context& io, std::function<void(bool)> done_) : socket(io), timer(io), done(std::move(done_)) {}
  void end(bool is_store) {
    if (!done) return;
    boost::system::error_code ignored;
    socket.close(ignored);
    timer.cancel();
    std::exchange(done, nullptr)(is_store);
  }
  asio::ip::tcp::socket socket;
  asio::steady_timer timer;
  std::array<char, kAnswer.size()> answer{};
  std::function<void(bool)> done;
};

}  // namespace

void probe_c10d_store(asio::io_context& io, const asio::ip::tcp::endpoint& at, std::chrono::milliseconds limit,
                      std::function<void(bool)> done) {
  const auto probe = std::make_shared<Probe>(io, std::move(done));
  probe->timer.expires_after(limit);
  probe->timer.async_wait([probe](const boost::system::error_code& error) {
    if (!error) probe->end(false);
  });
  const auto received = [probe](const boost::system::error_code& error, std::size_t) {
    probe->end(!error && std::string_view(probe->answer.data(), probe->answer.size()) == kAnswer);
  };
  probe->socket.async_connect(at, [probe, received](const boost::system::error_code& error) {
    if (error || !probe->done) return probe->end(false);
    asio::async_write(probe->socket, asio::buffer(kQuestion), [](const boost::system::error_code&, std::size_t) {});
    asio::async_read(probe->socket, asio::buffer(probe->answer), received);
  });
}

}  // namespace dtrun::rendezvous
