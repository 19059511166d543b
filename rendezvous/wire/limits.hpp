// What one request may cost. A request over a limit is refused as soon as its announced length is read, before memory
// is taken.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrun::rendezvous {

// All bounds are inclusive; the defaults are those of PyTorch's libuv server.
struct RequestLimits {
  std::uint64_t key_bytes = 8 * 1024;
  std::uint64_t value_bytes = 8 * 1024 * 1024;
  std::uint64_t keys_per_request = 128 * 1024;
};

}  // namespace dtrun::rendezvous
