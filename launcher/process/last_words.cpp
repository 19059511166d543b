#include "launcher/process/last_words.hpp"

#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstring>

namespace dtrun::launcher {
namespace {

char words[512];
int target = -1;
std::atomic<std::size_t> size{0};  // 0: nothing to say; written last
static_assert(std::atomic<std::size_t>::is_always_lock_free);

}  // namespace

void prepare_last_words(int socket, std::string_view bytes) noexcept {
  forget_last_words();
  if (bytes.size() > sizeof words) return;
  std::memcpy(words, bytes.data(), bytes.size());
  target = socket;
  size.store(bytes.size());
}

void forget_last_words() noexcept { size.store(0); }

void say_last_words() noexcept {
  // A full buffer, or a connection that is gone: then it is not said.
  if (const auto bytes = size.load(); bytes > 0) ::send(target, words, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace dtrun::launcher
