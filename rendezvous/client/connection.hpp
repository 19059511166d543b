// One socket to a store server: connecting, and sending and receiving within deadlines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/endpoint.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::rendezvous {

// Asked after every try to connect that failed, with the reason; false gives up.
using ConnectWatch = std::function<bool(const std::string& why)>;

// Not thread-safe, except interrupt(). Every failure throws (TimeoutError, RendezvousError with the endpoint in the
// text); what is half sent or half received then makes the connection useless, and broken() says so.
class Connection {
 public:
  // Connects and says hello (VALIDATE, PING); tries again with growing pauses until the deadline when the host is not
  // there yet.
  Connection(Endpoint server, Deadline deadline, const ConnectWatch& watch = {});

  void send(std::string_view bytes, Deadline deadline);
  // Exactly `size` bytes.
  void receive(char* to, std::size_t size, Deadline deadline);
  template <class Integer>
  Integer receive_integer(Deadline deadline) {
    Integer value;
    receive(reinterpret_cast<char*>(&value), sizeof value, deadline);
    return value;
  }
  // A u64 length and as many bytes. Memory is taken as the bytes come, not as announced.
  std::string receive_bytes(Deadline deadline);
  // False at the deadline; true when a byte (or the end) has come.
  bool readable(Deadline deadline);

  const Endpoint& server() const { return server_; }
  bool broken() const { return !broken_.empty(); }
  const std::string& why_broken() const { return broken_; }
  void interrupt() noexcept;
  std::string local_address() const;

 private:
  void connect_until(Deadline deadline, const ConnectWatch& watch);
  std::string try_hello(int fd, Deadline deadline);
  void wait_for(short events, Deadline deadline, std::string_view doing);
  std::size_t fill(Deadline deadline);
  [[noreturn]] void fail(std::string_view why);
  void note_broken(std::string_view why);

  Endpoint server_;
  UniqueFd socket_;
  // Readable once interrupted; polled beside the socket.
  UniqueFd interrupt_;
  std::string input_;
  std::size_t input_at_ = 0;
  std::string broken_;  // the first failure
};

}  // namespace dtrun::rendezvous
