// The secret that the nodes of a job share.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace dtrun::rendezvous {

using Proof = std::array<std::uint8_t, 32>;

// A value; copies share one piece of memory that stays out of core dumps and swap (where the system lets us) and is
// wiped when the last copy goes. Never printed, never in an environment or a command line.
class JobToken {
 public:
  // Of a regular file that only its owner (root or this user) can read: 16 to 4096 bytes, a newline at the end does not
  // count. Throws UsageError with the path, never with the content.
  static JobToken read(const std::string& path);

  // HMAC-SHA256 of the text.
  Proof sign(std::string_view text) const;
  // In constant time.
  bool signed_by(std::string_view text, const Proof& proof) const;

 private:
  class Secret;
  explicit JobToken(std::shared_ptr<const Secret> secret) : secret_(std::move(secret)) {}
  std::shared_ptr<const Secret> secret_;
};

}  // namespace dtrun::rendezvous
