// The first half of a Connection's life: name, socket, hello, and trying again.
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>

#include "rendezvous/base/error.hpp"
#include "rendezvous/client/connection.hpp"
#include "rendezvous/client/resolve.hpp"
#include "rendezvous/wire/bytes.hpp"
#include "rendezvous/wire/request_writer.hpp"

namespace dtrun::rendezvous {
namespace {

// A server that accepts and stays mute for so long is asked again over a new connection.
constexpr auto kHelloTime = std::chrono::seconds(30);
// An address that does not answer costs so much of the budget, then it is the next one's turn. A name server gets more:
// it is asked on a thread of its own, which cannot be called back.
constexpr auto kConnectTime = std::chrono::seconds(5);
constexpr auto kResolveTime = std::chrono::seconds(30);

Deadline at_most(Clock::duration time, Deadline deadline) {
  return Deadline(std::min(deadline.at(), Deadline::after(time).at()));
}

// Pauses grow from 20 ms by half each time up to 2 s, each +-50 %: quick on one machine, gentle when thousands come at
// once.
class Backoff {
 public:
  Clock::duration next() {
    const double jitter = std::uniform_real_distribution<>(0.5, 1.5)(random_);
    const auto pause = std::chrono::duration<double, std::milli>(milliseconds_ * jitter);
    milliseconds_ = std::min(milliseconds_ * 1.5, 2000.0);
    return std::chrono::duration_cast<Clock::duration>(pause);
  }

 private:
  double milliseconds_ = 20;
  std::minstd_rand random_{std::random_device{}()};
};

struct Attempt {
  UniqueFd socket;
  int error = 0;
};

Attempt open_socket(const SocketAddress& address, int interrupt, Deadline deadline) {
  Attempt attempt;
  attempt.socket.reset(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  attempt.error = attempt.socket ? 0 : errno;
  if (!attempt.socket) return attempt;
  const int fd = attempt.socket.value(), on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(fd, address.raw(), address.size) == 0) return attempt;
  attempt.error = errno;
  if (attempt.error != EINPROGRESS && attempt.error != EINTR) return attempt;
  pollfd both[2] = {{fd, POLLOUT, 0}, {interrupt, POLLIN, 0}};
  int ready = 0;
  do {
    ready = ::poll(both, 2, deadline.poll_milliseconds());
  } while (ready < 0 && errno == EINTR);
  attempt.error = ETIMEDOUT;
  if (ready > 0 && both[1].revents) attempt.error = ECANCELED;
  socklen_t size = sizeof attempt.error;
  if (ready > 0 && both[0].revents) ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &attempt.error, &size);
  return attempt;
}

// The local port was picked as the destination: TCP lets a socket connect to itself. Then nobody listens there.
bool connected_to_itself(int fd) {
  sockaddr_storage local{}, peer{};
  socklen_t local_size = sizeof local, peer_size = sizeof peer;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_size) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 && local_size == peer_size &&
         std::memcmp(&local, &peer, local_size) == 0;
}

std::string explain(int error) {
  if (error == ECONNREFUSED) return "refused: nothing listens there";
  if (error == ETIMEDOUT) return "no answer";
  return std::generic_category().message(error);
}

bool is_transient(int error) {
  return error == ECONNREFUSED || error == ECONNRESET || error == ETIMEDOUT || error == EHOSTUNREACH ||
         error == ENETUNREACH || error == ECONNABORTED || error == EAGAIN || error == EADDRNOTAVAIL || error == EPIPE;
}

}  // namespace

// Empty when the server answered the PING; otherwise why not.
std::string Connection::try_hello(int fd, Deadline deadline) {
  const auto nonce = static_cast<std::uint32_t>(::getpid());
  std::string hello;
  RequestWriter writer(hello);
  // libuv servers need the five bytes of VALIDATE in one piece; one write for all of it does that too.
  writer.validate();
  writer.ping(nonce);
  input_.clear();
  input_at_ = 0;
  socket_.reset(fd);
  std::uint32_t echo = 0;
  try {
    send(hello, deadline);
    echo = receive_integer<std::uint32_t>(deadline);
  } catch (const TimeoutError&) {
    return "connected, but no answer to the hello (is it a c10d store of PyTorch 2.2 or later?)";
  } catch (const RendezvousError& error) {
    return error.what();
  }
  if (echo != nonce) fail("it does not speak the c10d store's protocol (wrong answer to PING)");
  return {};
}

void Connection::connect_until(Deadline deadline, const ConnectWatch& watch) {
  const auto begin = Clock::now();
  Backoff backoff;
  std::string why = "no time was given";
  bool in_time = false;
  while (!deadline.passed()) {
    const auto resolved = resolve(server_.host, server_.port, at_most(kResolveTime, deadline));
    if (resolved.addresses.empty()) why = fmt::format("name not resolved: {}", resolved.failure);
    bool again = resolved.addresses.empty() && resolved.worth_retrying;
    for (const auto& address : resolved.addresses) {
      auto attempt = open_socket(address, interrupt_.value(), at_most(kConnectTime, deadline));
      if (attempt.error == 0 && connected_to_itself(attempt.socket.value())) attempt.error = ECONNREFUSED;
      if (attempt.error == 0) {
        why = try_hello(attempt.socket.release(), at_most(kHelloTime, deadline));
        broken_ = why;
        if (!broken()) return;
        again = true;
        continue;
      }
      if (attempt.error == ECANCELED) fail("interrupted by the caller");
      why = explain(attempt.error);
      again = again || is_transient(attempt.error);
    }
    in_time = !again;
    if (!again) break;
    if (watch && !watch(why)) fail("given up by the caller");
    const auto pause = std::min<Clock::duration>(backoff.next(), deadline.remaining());
    pollfd interrupted = {interrupt_.value(), POLLIN, 0};
    if (::poll(&interrupted, 1, Deadline::after(pause).poll_milliseconds()) > 0) fail("interrupted by the caller");
  }
  const auto seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  note_broken(why);
  const auto text =
      fmt::format("cannot reach the store at {} (tried for {:.1f} s): {}", server_.to_string(), seconds, why);
  if (in_time) throw RendezvousError("store", text);
  throw TimeoutError("store", text);
}

}  // namespace dtrun::rendezvous
