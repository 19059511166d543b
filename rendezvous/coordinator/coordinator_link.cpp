#include "rendezvous/coordinator/coordinator_link.hpp"

#include <fmt/format.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>

#include <algorithm>
#include <utility>

namespace dtrun::rendezvous {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr auto kBetweenTries = std::chrono::milliseconds(250);
constexpr auto kOneTry = std::chrono::seconds(5);

}  // namespace

CoordinatorLink::CoordinatorLink(asio::io_context& io, Endpoint coordinator, Callbacks callbacks)
    : io_(io), coordinator_(std::move(coordinator)), callbacks_(std::move(callbacks)), resolver_(io), timer_(io) {}

CoordinatorLink::~CoordinatorLink() {
  finish();
  if (trying_) {
    boost::system::error_code ignored;
    trying_->close(ignored);
  }
}

void CoordinatorLink::connect(Deadline deadline, bool give_up_when_refused) {
  finish();
  deadline_ = deadline;
  give_up_when_refused_ = give_up_when_refused;
  try_once();
}

void CoordinatorLink::try_once() {
  const auto alive = std::weak_ptr(alive_);
  resolver_.async_resolve(coordinator_.host, std::to_string(coordinator_.port), tcp::resolver::numeric_service,
                          [this, alive](const boost::system::error_code& error, tcp::resolver::results_type found) {
                            if (alive.expired() || error == asio::error::operation_aborted) return;
                            if (error) return missed(error, "the name is not known");
                            connect_to(std::move(found));
                          });
}

void CoordinatorLink::connect_to(tcp::resolver::results_type found) {
  const auto alive = std::weak_ptr(alive_);
  trying_ = std::make_shared<tcp::socket>(io_);
  timer_.expires_at(std::min(deadline_.at(), Clock::now() + kOneTry));
  timer_.async_wait([socket = trying_](const boost::system::error_code& error) {
    boost::system::error_code ignored;
    if (!error) socket->close(ignored);
  });
  asio::async_connect(*trying_, std::move(found),
                      [this, alive, socket = trying_](const boost::system::error_code& error, const tcp::endpoint&) {
                        if (alive.expired() || socket != trying_) return;
                        trying_.reset();
                        timer_.cancel();
                        // Closed by the timer: cancelled, or connected a moment before.
                        if (error || !socket->is_open())
                          return missed(error, error == asio::error::connection_refused ? "refused" : "no answer");
                        use(std::move(*socket));
                      });
}

void CoordinatorLink::use(tcp::socket socket) {
  boost::system::error_code error;
  local_address_ = socket.local_endpoint(error).address().to_string();
  problem_.clear();
  stream_ = std::make_shared<FrameStream>(std::move(socket));
  const auto alive = std::weak_ptr(alive_);
  stream_->start({[this, alive](std::string_view message) {
                    if (!alive.expired()) callbacks_.said(decode_to_agent(message));
                  },
                  [this, alive](const std::string& why) {
                    if (alive.expired()) return;
                    stream_.reset();
                    callbacks_.lost(why);
                  }});
  callbacks_.connected();
}

void CoordinatorLink::missed(const boost::system::error_code& error, const std::string& what) {
  problem_ = what;
  const bool refused = error == asio::error::connection_refused && give_up_when_refused_;
  if (refused || deadline_.passed(Clock::now() + kBetweenTries))
    return callbacks_.failed(fmt::format("{}: {}", coordinator_.to_string(), what));
  timer_.expires_after(kBetweenTries);
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& ended) {
    if (!alive.expired() && !ended) try_once();
  });
}

void CoordinatorLink::say(const ToCoordinator& message) {
  if (stream_) stream_->send(encode(message));
}

void CoordinatorLink::finish() {
  resolver_.cancel();
  timer_.cancel();
  trying_.reset();
  if (stream_) std::exchange(stream_, nullptr)->finish();
}

}  // namespace dtrun::rendezvous
