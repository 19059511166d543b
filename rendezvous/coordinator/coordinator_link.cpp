#include "rendezvous/coordinator/coordinator_link.hpp"

#include <fmt/format.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>

#include <algorithm>
#include <utility>

#include "rendezvous/coordinator/c10d_probe.hpp"

namespace dtrun::rendezvous {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// The host of the coordinator mostly starts at the same time.
constexpr auto kFirstPause = std::chrono::milliseconds(10), kLongestPause = std::chrono::milliseconds(250);
constexpr auto kOneTry = std::chrono::seconds(5);
// Together less than the silence after which a member gives up a connection.
constexpr auto kFirstAnswer = std::chrono::seconds(3);
constexpr auto kProbe = std::chrono::seconds(1);
constexpr auto kNoAnswerSoFar = "no answer so far";

std::string reason(const boost::system::error_code& error) {
  if (error == asio::error::connection_refused) return "refused";
  if (error == asio::error::host_unreachable || error == asio::error::network_unreachable) return "no route to host";
  // Closed by the timer: cancelled, or connected a moment before.
  if (!error || error == asio::error::operation_aborted || error == asio::error::timed_out)
    return "no answer (timed out)";
  return error.message();
}

}  // namespace

CoordinatorLink::CoordinatorLink(asio::io_context& io, Endpoint coordinator, Callbacks callbacks, std::string job,
                                 std::optional<JobToken> token)
    : io_(io),
      coordinator_(std::move(coordinator)),
      callbacks_(std::move(callbacks)),
      job_(std::move(job)),
      token_(std::move(token)),
      lookup_(io),
      timer_(io) {}

CoordinatorLink::~CoordinatorLink() { finish(); }

void CoordinatorLink::connect(Deadline deadline, bool give_up_when_refused) {
  finish();
  // Somebody who closes every connection does not get the whole time again for each.
  give_up_when_refused_ = give_up_when_refused && (!mute_ || ever_heard_);
  if (mute_) return missed(std::string(problem_));
  deadline_ = deadline;
  pause_ = kFirstPause;
  try_once();
}

void CoordinatorLink::try_once() {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_.at() - Clock::now());
  lookup_.start(coordinator_, std::min<std::chrono::milliseconds>(left, kOneTry),
                [this](const std::string& problem, const NameLookup::Addresses& found) {
                  if (!problem.empty()) return missed(problem);
                  connect_to(found);
                });
}

void CoordinatorLink::connect_to(const NameLookup::Addresses& found) {
  const auto alive = std::weak_ptr(alive_);
  trying_ = std::make_shared<tcp::socket>(io_);
  if (problem_.empty()) problem_ = kNoAnswerSoFar;
  timer_.expires_at(std::min(deadline_.at(), Clock::now() + kOneTry));
  timer_.async_wait([socket = trying_](const boost::system::error_code& error) {
    boost::system::error_code ignored;
    if (!error) socket->close(ignored);
  });
  asio::async_connect(*trying_, found,
                      [this, alive, socket = trying_](const boost::system::error_code& error, const tcp::endpoint&) {
                        if (alive.expired() || socket != trying_) return;
                        trying_.reset();
                        timer_.cancel();
                        if (error || !socket->is_open())
                          return missed(reason(error), error == asio::error::connection_refused);
                        use(std::move(*socket));
                      });
}

void CoordinatorLink::use(tcp::socket socket) {
  boost::system::error_code error;
  local_address_ = socket.local_endpoint(error).address().to_string();
  remote_ = socket.remote_endpoint(error);
  problem_.clear();
  heard_ = false;
  stream_ = std::make_shared<FrameStream>(std::move(socket), token_ ? kMaxHandshakeBytes : kMaxMessageBytes);
  stream_->start(listener());
  timer_.expires_after(kFirstAnswer);
  timer_.async_wait([this, alive = std::weak_ptr(alive_), stream = stream_](const boost::system::error_code& ended) {
    if (ended || alive.expired() || stream != stream_) return;
    find_out(Nonsense::silent, "");
  });
  if (!token_) return callbacks_.connected();
  handshake_.emplace(*token_, job_, fresh_nonce());
  stream_->send(handshake_->opening());
}

FrameStream::Listener CoordinatorLink::listener() {
  const auto alive = std::weak_ptr(alive_);
  return {[this, alive](std::string_view message) {
            if (alive.expired()) return;
            if (handshake_) return hear_handshake(message);
            hear(message);
          },
          [this, alive](const std::string& why) {
            if (!alive.expired()) ended(why);
          }};
}

// Throws MessageError, which ends the stream.
void CoordinatorLink::hear(std::string_view message) {
  const auto said = decode_to_agent(message);
  if (!std::exchange(heard_, true)) timer_.cancel();
  ever_heard_ = true;
  mute_ = false;
  callbacks_.said(said);
}

void CoordinatorLink::hear_handshake(std::string_view message) {
  const auto step = handshake_->hear(message);
  heard_ = true;
  if (step.state == HandshakeStep::State::refused) return fail_for_good(": " + step.why);
  if (step.state == HandshakeStep::State::going_on) return stream_->send(step.answer);
  handshake_.reset();
  timer_.cancel();
  ever_heard_ = true;
  stream_->pass_to(listener());
  callbacks_.connected();
}

void CoordinatorLink::ended(const std::string& why) {
  stream_.reset();
  timer_.cancel();
  if (!heard_) return find_out(why == kConnectionEnded ? Nonsense::closed : Nonsense::garbage, why);
  if (!handshake_) return callbacks_.lost(why);
  handshake_.reset();
  missed("it closed the connection in the middle of the handshake");
}

// Nothing that a coordinator says has come. Only one that was closed may be better the next time: a forwarder whose
// target is not there yet, a coordinator with too many strangers at the door.
void CoordinatorLink::find_out(Nonsense kind, const std::string& why) {
  const bool member_thinks_it_is_connected = !token_;
  finish();
  const auto ask_again = [this, member_thinks_it_is_connected](const std::string& what) {
    if (!member_thinks_it_is_connected) return missed(what);
    mute_ = true;
    problem_ = what;
    callbacks_.lost(what);
  };
  // Its machine may be suspended.
  if (kind == Nonsense::silent && ever_heard_) return ask_again("it does not answer");
  probe_c10d_store(io_, remote_, kProbe,
                   [this, kind, why, ask_again, alive = std::weak_ptr(alive_), attempt = attempt_](bool is_store) {
                     if (alive.expired() || attempt != attempt_) return;
                     if (is_store) return fail_for_good(" is a c10d store, not a dtrun coordinator");
                     if (kind == Nonsense::silent)
                       return fail_for_good(" does not answer: it is no dtrun coordinator, or one that hangs");
                     if (kind == Nonsense::garbage)
                       return fail_for_good(fmt::format(" is no dtrun coordinator: it sent {}", why));
                     ask_again("it closes connections without an answer");
                   });
}

void CoordinatorLink::fail_for_good(const std::string& what) {
  finish();
  problem_ = what.substr(what.find_first_not_of(": "));
  callbacks_.failed(coordinator_.to_string() + what);
}

void CoordinatorLink::missed(const std::string& what, bool refused) {
  // A try that the deadline cut short says nothing.
  if (!deadline_.passed() || problem_.empty() || problem_ == kNoAnswerSoFar) problem_ = what;
  if ((refused && give_up_when_refused_) || deadline_.passed()) return give_up();
  timer_.expires_at(std::min(deadline_.at(), Clock::now() + pause_));
  pause_ = std::min<Clock::duration>(2 * pause_, kLongestPause);
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& ended) {
    if (alive.expired() || ended) return;
    deadline_.passed() ? give_up() : try_once();
  });
}

void CoordinatorLink::give_up() {
  callbacks_.failed(fmt::format("{} {}: {}", ever_heard_ ? "the coordinator is gone," : "no coordinator at",
                                coordinator_.to_string(), problem_));
}

void CoordinatorLink::say(const ToCoordinator& message) {
  if (stream_) stream_->send(encode(message));
}

void CoordinatorLink::finish() {
  ++attempt_;
  lookup_.cancel();
  timer_.cancel();
  handshake_.reset();
  if (trying_) {
    boost::system::error_code ignored;
    std::exchange(trying_, nullptr)->close(ignored);
  }
  if (stream_) std::exchange(stream_, nullptr)->finish();
}

}  // namespace dtrun::rendezvous
