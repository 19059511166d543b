// A real server on a thread of its own, and a client of raw bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/server/store_server.hpp"
#include "rendezvous/wire/request_writer.hpp"

namespace store_test {

class TestServer {
 public:
  explicit TestServer(dtrun::rendezvous::StoreServerOptions options = {});
  ~TestServer();
  std::uint16_t port() const;
  // Asked on the server's thread.
  std::size_t connections();
  // Returns when the server has dealt with everything that was sent so far.
  void settle();

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

// Every wait ends after ten seconds at the latest, as a failed test.
class RawClient {
 public:
  // `receive_buffer` > 0: a small window, for clients that do not read.
  explicit RawClient(std::uint16_t port, int receive_buffer = 0);
  // Connected, with VALIDATE and PING done.
  static RawClient v2(std::uint16_t port, int receive_buffer = 0);
  // False when the server has closed the connection.
  bool send(std::string_view bytes);
  template <class Write>
  bool request(Write&& write, dtrun::rendezvous::Dialect dialect = dtrun::rendezvous::Dialect::v2) {
    std::string bytes;
    dtrun::rendezvous::RequestWriter writer(bytes, dialect);
    write(writer);
    return send(bytes);
  }
  // Exactly so many bytes; fewer when the server closed or nothing came.
  std::string receive(std::size_t size, int milliseconds = 10'000);
  // True when the server closes within the time (bytes that come before are dropped).
  bool closed_within(int milliseconds);
  void half_close();
  void reset();
  int fd() const { return socket_.value(); }

 private:
  dtrun::UniqueFd socket_;
};

// Resident memory of this process, or of another one, in bytes.
std::size_t resident_bytes(int pid = 0);

// The 99th percentile, in milliseconds, of connect + hello + SET + GET, over `rounds` rounds.
double connect_set_get_p99(std::uint16_t port, int rounds);

}  // namespace store_test
