#include "rendezvous/coordinator/entrance.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>

#include <utility>

#include "rendezvous/base/endpoint.hpp"

namespace dtrun::rendezvous {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::size_t kMaxHelloBytes = 4096;
constexpr auto kNotesForgotten = std::chrono::minutes(10);

SocketEnd end_of(const tcp::endpoint& endpoint) {
  auto address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    address = make_address_v4(asio::ip::v4_mapped, address.to_v6());
  return {address.to_string(), endpoint.port()};
}

// Empty when the peer may speak: it is on another machine, or of our own user, or root's.
std::string objection_to_user(const SocketEnd& own, const SocketEnd& peer) {
  if (own.host != peer.host && !is_loopback_host(peer.host)) return {};
  const auto user = user_of_peer(own, peer);
  if (!user || *user == 0 || *user == ::geteuid()) return {};
  return fmt::format("it is a process of user {}, the job is user {}'s", *user, ::geteuid());
}

}  // namespace

Entrance::Entrance(asio::io_context& io, std::optional<JobToken> token, EntranceLimits limits, Admit admit, Note note)
    : token_(std::move(token)), limits_(limits), admit_(std::move(admit)), note_(std::move(note)), timer_(io) {}

Entrance::~Entrance() {
  for (auto& [id, stranger] : strangers_) stranger.stream->close();
}

void Entrance::add(tcp::socket socket) {
  if (strangers_.size() >= limits_.connections) {
    refuse(strangers_.begin()->first, "too many connections wait that have not said who they are");
  }
  const auto id = ++next_id_;
  boost::system::error_code gone;
  auto own = end_of(socket.local_endpoint(gone)), peer = end_of(socket.remote_endpoint(gone));
  if (gone) return;
  auto stream = std::make_shared<FrameStream>(std::move(socket), token_ ? kMaxHandshakeBytes : kMaxHelloBytes);
  strangers_.try_emplace(id, Stranger{stream, std::move(own), std::move(peer),
                                      CoordinatorHandshake(token_, fresh_nonce()), Clock::now() + limits_.patience});
  const auto alive = std::weak_ptr(alive_);
  stream->start({[this, alive, id](std::string_view message) {
                   if (!alive.expired()) hear(id, message);
                 },
                 [this, alive, id](const std::string& why) {
                   if (!alive.expired()) refuse(id, why);
                 }});
  arm_timer();
}

// Throws MessageError, which ends the stream.
void Entrance::hear(std::uint64_t id, std::string_view message) {
  const auto found = strangers_.find(id);
  if (found == strangers_.end()) return;
  const auto step = found->second.handshake.hear(message);
  const auto stream = found->second.stream;
  if (step.state == HandshakeStep::State::refused) {
    stream->send(step.answer);
    return refuse(id, step.why);
  }
  if (const auto why = objection_to_user(found->second.own, found->second.peer); !why.empty()) {
    // In a job without a token it has said hello already, and hears an agent's answer.
    if (!token_) stream->send(encode(ToAgent(Refuse{why, false})));
    return refuse(id, why);
  }
  std::optional<ToCoordinator> first;
  if (!token_) first = decode_to_coordinator(message);
  if (!step.answer.empty()) stream->send(step.answer);
  // Sending may have ended it.
  if (step.state != HandshakeStep::State::admitted || !strangers_.contains(id)) return;
  auto address = std::move(found->second.peer.host);
  strangers_.erase(found);
  admit_({stream, std::move(address), std::move(first)});
}

// What was sent to it goes out still.
void Entrance::refuse(std::uint64_t id, const std::string& why) {
  const auto found = strangers_.find(id);
  if (found == strangers_.end()) return;
  const auto stranger = std::move(found->second);
  strangers_.erase(found);
  stranger.stream->finish();
  // Somebody who looks whether the port is open is no news.
  if (why != kConnectionEnded) note(fmt::format("refused {}: {}", stranger.peer.host, why));
}

void Entrance::note(const std::string& line) {
  if (!note_) return;
  const auto now = Clock::now();
  if (noted_.empty() || now - noted_since_ > kNotesForgotten) {
    noted_.clear();
    noted_since_ = now;
  }
  if (noted_.size() > kMaxNotes || noted_.contains(line)) return;
  if (noted_.size() == kMaxNotes) {
    noted_.insert({});
    return note_("refused many more connections: no further line for the next ten minutes");
  }
  noted_.insert(line);
  note_(line);
}

void Entrance::arm_timer() {
  if (timer_armed_ || strangers_.empty()) return;
  timer_armed_ = true;
  timer_.expires_at(strangers_.begin()->second.until);
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
    if (error || alive.expired()) return;
    timer_armed_ = false;
    look_at_clock();
  });
}

void Entrance::look_at_clock() {
  const auto now = Clock::now();
  while (!strangers_.empty() && strangers_.begin()->second.until <= now) {
    refuse(strangers_.begin()->first, fmt::format("did not say who it is within {:.1f} s",
                                                  std::chrono::duration<double>(limits_.patience).count()));
  }
  arm_timer();
}

}  // namespace dtrun::rendezvous
