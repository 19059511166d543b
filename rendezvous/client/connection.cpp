#include "rendezvous/client/connection.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "rendezvous/base/error.hpp"
#include "rendezvous/wire/bytes.hpp"

namespace dtrun::rendezvous {
namespace {

constexpr std::size_t kReadSize = std::size_t{64} << 10;

std::string error_text(int error) { return std::generic_category().message(error); }

}  // namespace

Connection::Connection(Endpoint server, Deadline deadline, const ConnectWatch& watch)
    : server_(std::move(server)), interrupt_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!interrupt_) throw_errno("store", "eventfd");
  connect_until(deadline, watch);
}

void Connection::note_broken(std::string_view why) {
  if (broken_.empty()) broken_ = why;
}

void Connection::fail(std::string_view why) {
  note_broken(why);
  throw RendezvousError("store", fmt::format("connection to the store at {} failed: {}", server_.to_string(), why));
}

void Connection::interrupt() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(interrupt_.value(), &one, sizeof one);
}

// Returns when the socket is ready. The interrupt always wins.
void Connection::wait_for(short events, Deadline deadline, std::string_view doing) {
  for (;;) {
    pollfd both[2] = {{socket_.value(), events, 0}, {interrupt_.value(), POLLIN, 0}};
    const int ready = ::poll(both, 2, deadline.poll_milliseconds());
    if (ready < 0 && errno != EINTR) fail(error_text(errno));
    if (ready > 0 && both[1].revents) fail("interrupted by the caller");
    if (ready > 0) return;
    if (deadline.passed()) {
      note_broken(fmt::format("timed out {} it", doing));
      throw TimeoutError("store", fmt::format("timed out {} the store at {}", doing, server_.to_string()));
    }
  }
}

bool Connection::readable(Deadline deadline) {
  if (input_at_ < input_.size()) return true;
  for (;;) {
    pollfd both[2] = {{socket_.value(), POLLIN, 0}, {interrupt_.value(), POLLIN, 0}};
    const int ready = ::poll(both, 2, deadline.poll_milliseconds());
    if (ready < 0 && errno != EINTR) fail(error_text(errno));
    if (ready > 0 && both[1].revents) fail("interrupted by the caller");
    if (ready > 0) return true;
    if (deadline.passed()) return false;
  }
}

void Connection::send(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const auto sent = ::send(socket_.value(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      wait_for(POLLOUT, deadline, "sending to");
    } else if (errno != EINTR) {
      fail(error_text(errno));
    }
  }
}

// At least one byte more in input_.
std::size_t Connection::fill(Deadline deadline) {
  if (input_at_ == input_.size()) {
    input_.clear();
    input_at_ = 0;
  }
  for (;;) {
    wait_for(POLLIN, deadline, "waiting for an answer from");
    char buffer[kReadSize];
    const auto got = ::recv(socket_.value(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got == 0) fail("closed by the server");
    if (got > 0) {
      input_.append(buffer, static_cast<std::size_t>(got));
      return static_cast<std::size_t>(got);
    }
    if (errno != EAGAIN && errno != EINTR) fail(error_text(errno));
  }
}

void Connection::receive(char* to, std::size_t size, Deadline deadline) {
  while (size > 0) {
    if (input_at_ == input_.size()) fill(deadline);
    const auto part = std::min(size, input_.size() - input_at_);
    std::memcpy(to, input_.data() + input_at_, part);
    input_at_ += part;
    to += part;
    size -= part;
  }
}

std::string Connection::receive_bytes(Deadline deadline) {
  auto left = receive_integer<std::uint64_t>(deadline);
  // No store holds a value of 1 TiB: the answers are out of step.
  if (left > (std::uint64_t{1} << 40)) fail(fmt::format("it announces a value of {} bytes", left));
  std::string value;
  while (left > 0) {
    if (input_at_ == input_.size()) fill(deadline);
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(left, input_.size() - input_at_));
    value.append(input_, input_at_, part);
    input_at_ += part;
    left -= part;
  }
  return value;
}

std::string Connection::local_address() const {
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  char text[INET6_ADDRSTRLEN] = "";
  if (::getsockname(socket_.value(), reinterpret_cast<sockaddr*>(&local), &size) != 0)
    throw_errno("store", "getsockname");
  if (local.ss_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(local).sin6_addr, text, sizeof text);
  } else {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(local).sin_addr, text, sizeof text);
  }
  return text;
}

}  // namespace dtrun::rendezvous
