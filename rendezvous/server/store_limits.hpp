// What the store server spends on its clients. Over a limit, the one client concerned is closed; everybody else is
// served.
#pragma once

#include <chrono>
#include <cstddef>

#include "rendezvous/wire/limits.hpp"

namespace dtrun::rendezvous {

struct StoreLimits {
  RequestLimits request;
  // Answers a client has not read yet.
  std::size_t unsent_bytes_per_client = std::size_t{16} << 20;
  // Half-received requests and unsent answers of all clients together.
  std::size_t buffered_bytes = std::size_t{256} << 20;
  // Keys and values held, queues and waited-for keys included, with 128 bytes of overhead counted for each.
  std::size_t stored_bytes = std::size_t{4} << 30;
  std::size_t connections = 64 * 1024;
  // WATCH_KEY registrations of one 1.x connection.
  std::size_t watches_per_client = 1024;

  // From the first byte to a recognised opening.
  std::chrono::milliseconds handshake = std::chrono::seconds(5);
  // For a half-received request to end or to gain another KiB (so one byte a second is not enough).
  std::chrono::milliseconds partial_request = std::chrono::seconds(30);
  // PyTorch 1.x clients open a second connection that never sends a byte. So many silent connections, plus one for
  // each 1.x client that is connected, may stay; above that the oldest ones are closed once they have been silent for
  // `handshake`.
  std::size_t silent_connections = 1024;
};

}  // namespace dtrun::rendezvous
