// Mesh and Buffer: what of Gloo is used: its TCP connections, one per pair of ranks, and messages between them that are
// received into memory named beforehand. A send starts once the peer has asked for it. Gloo's own waits close every
// connection when they time out, and never end when a peer dies in the middle of a message; those here do neither.
#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "rendezvous/base/clock.hpp"
#include "worker_runtime/comm/gloo/alarm.hpp"

namespace dtrun::runtime::gloo {

// Memory that is sent or received. Destroying one whose operation is under way leaves its connection useless, and the
// memory alone.
class Buffer {
 public:
  // `waiting`: not yet, though it may have come at this very moment. `broken`: the connection is gone and none will
  // come.
  enum class State { ready, waiting, broken };

  Buffer(std::unique_ptr<::gloo::transport::UnboundBuffer> inner, Alarm& alarm);

  // Waits for one finished receive or send and takes it. One thread at a time.
  State take_received(Deadline deadline);
  State take_sent(Deadline deadline);
  // For a receive that never ends: whether its connection is gone, without waiting.
  bool broken();

 private:
  friend class Mesh;
  std::unique_ptr<::gloo::transport::UnboundBuffer> inner_;
  Alarm& alarm_;
};

// Gloo's thread and ours.
struct Engine {
  // `address` is numeric and this machine's own. Throws CommError.
  explicit Engine(const std::string& address);
  std::shared_ptr<::gloo::transport::Device> device;
  Alarm alarm;
};

// Owned by a GlooGroup. Posting is thread-safe; connect() and close() are called by the owner while nobody posts.
class Mesh {
 public:
  static constexpr std::size_t kAddressBytes = 192;  // of one connection's address, padded

  // Listens for each other rank; `timeout` bounds each connection. Throws CommError.
  Mesh(std::shared_ptr<Engine> engine, int rank, int size, std::chrono::milliseconds timeout);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;
  ~Mesh();

  const std::shared_ptr<Engine>& engine() const noexcept { return engine_; }
  // kAddressBytes for each rank: where this one expects it.
  const std::string& addresses() const noexcept { return addresses_; }
  // `theirs`: addresses() of `peer`. Throws CommError.
  void connect(int peer, const std::string& theirs);

  std::unique_ptr<Buffer> buffer(void* data, std::size_t bytes);
  // False when the connection is gone. `slot` tells apart what is under way at the same time; within one, messages
  // arrive in order. A message may be shorter than the memory that waits for it.
  bool send(Buffer& from, int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes) noexcept;
  bool receive(Buffer& into, int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes) noexcept;

  // What is in the kernel's hands still arrives. Takes up to 10 ms per connection.
  void close() noexcept;

 private:
  std::shared_ptr<Engine> engine_;
  int rank_;
  int size_;
  std::shared_ptr<::gloo::transport::Context> context_;
  std::string addresses_;
};

}  // namespace dtrun::runtime::gloo
