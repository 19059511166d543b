#include "rendezvous/server/session.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>

#include "rendezvous/server/peer_log.hpp"

namespace dtrun::rendezvous {
namespace {

// Output memory that a quiet session may keep.
constexpr std::size_t kKeptCapacity = 4096;
// Reads of one session before the others get their turn.
constexpr int kReadsPerTurn = 8;
// A half request that gained this much starts its clock again.
constexpr std::size_t kProgress = 1024;

}  // namespace

Session::Session(SessionContext& context, UniqueFd socket, Clock::time_point now)
    : context_(context), socket_(std::move(socket)), parser_(context.limits.request, context.serve_1x) {
  context_.opening.join(*this, now);
  if (!context_.poller.add(socket_.value(), EPOLLIN, this)) fail("the kernel cannot watch another connection");
}

Session::~Session() {
  context_.space.cancel(*this);
  context_.space.unwatch(*this);
  context_.buffered_bytes -= accounted_;
  if (known_ && parser_.dialect() == Dialect::v1) --context_.sessions_1x;
}

void Session::receive(Clock::time_point now) {
  auto& buffer = context_.read_buffer;
  for (int turn = 0; turn < kReadsPerTurn && !failed(); ++turn) {
    const auto got = ::recv(socket_.value(), buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (got <= 0) return fail({});
    const auto held = parser_.buffered();
    consume({buffer.data(), static_cast<std::size_t>(got)});
    parser_.release();
    if (failed()) return;
    // More is held than before: still the same request. Anything else means that one was finished.
    keep_time(now, parser_.buffered() <= held);
    if (static_cast<std::size_t>(got) < buffer.size()) break;
  }
  if (!failed() && unsent() > 0 && !wants_write_) flush();
  if (!failed()) account();
}

void Session::consume(std::string_view input) {
  while (!input.empty() && !failed()) {
    const auto status = parser_.next(input);
    if (!known_ && parser_.dialect() != Dialect::unknown) opened();
    if (status == RequestParser::Status::need_more) return;
    if (status == RequestParser::Status::refused) return fail(parser_.refusal());
    execute(parser_.request());
  }
}

void Session::opened() {
  known_ = true;
  leave();
  if (parser_.dialect() == Dialect::v1) ++context_.sessions_1x;
}

void Session::keep_time(Clock::time_point now, bool progress) {
  const auto held = parser_.buffered();
  if (!known_) {
    // A half opening keeps the clock that was started at the connection.
    if (list() == &context_.silent) context_.opening.join(*this, now);
    return;
  }
  if (held == 0) {
    if (list() == &context_.partial) leave();
    return;
  }
  if (list() != &context_.partial || progress || held >= partial_mark_ + kProgress) {
    partial_mark_ = held;
    context_.partial.join(*this, now);
  }
}

void Session::flush() {
  unflushed_ = false;
  if (overflow_) return fail("does not read what it watches");
  send_now();
  if (failed()) return;
  const bool rest = unsent() > 0;
  if (rest != wants_write_) {
    wants_write_ = rest;
    context_.poller.modify(socket_.value(), rest ? EPOLLIN | EPOLLOUT : EPOLLIN, this);
  }
  account();
}

void Session::send_now() {
  while (unsent() > 0) {
    const auto sent = ::send(socket_.value(), out_.data() + sent_, unsent(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return fail({});
      break;
    }
    sent_ += static_cast<std::size_t>(sent);
  }
  if (unsent() == 0) {
    sent_ = 0;
    if (out_.capacity() > kKeptCapacity) {
      std::string().swap(out_);
    } else {
      out_.clear();
    }
  } else if (sent_ > out_.size() / 2) {
    out_.erase(0, sent_);
    sent_ = 0;
  }
}

// Called before an answer of this size is built. Tries to get rid of what lies there first.
bool Session::output_room(std::size_t bytes) {
  if (failed()) return false;
  const auto limit = context_.limits.unsent_bytes_per_client;
  if (unsent() + bytes <= limit) return true;
  send_now();
  if (failed()) return false;
  if (unsent() + bytes <= limit) return true;
  fail(fmt::format("does not read its answers: {} bytes unsent, the limit is {}", unsent() + bytes, limit));
  return false;
}

void Session::account() {
  const auto now = parser_.buffered() + unsent();
  context_.buffered_bytes += now - accounted_;
  const bool grown = now > accounted_;
  accounted_ = now;
  if (grown && context_.buffered_bytes > context_.limits.buffered_bytes) {
    fail(fmt::format("the buffers of all clients hold {} bytes, the limit is {}", context_.buffered_bytes,
                     context_.limits.buffered_bytes));
  }
}

void Session::fail(std::string_view why) {
  if (failed()) return;
  if (!why.empty()) {
    log_closed_client(socket_.value(), why);
    // The requests before the bad one were answered: let the answers out, if the kernel takes them.
    if (unsent() > 0) (void)!::send(socket_.value(), out_.data() + sent_, unsent(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  leave();
  // Closing takes it out of the poller. Registered waits are dropped now: nobody else's change may wake this session.
  context_.space.cancel(*this);
  context_.space.unwatch(*this);
  socket_.reset();
  context_.failed.push_back(this);
}

// For sessions that another session's request made speak.
void Session::has_output() {
  if (unflushed_ || (wants_write_ && !overflow_)) return;
  unflushed_ = true;
  context_.unflushed.push_back(this);
}

}  // namespace dtrun::rendezvous
