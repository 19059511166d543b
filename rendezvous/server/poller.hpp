// An epoll set of the store server's sockets, level-triggered.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <span>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::rendezvous {

// The set is one descriptor in the io_context of the caller: Asio says that something is ready, this says what. It
// costs one epoll_ctl per connection instead of one per request, and no Asio object per connection.
class Poller {
 public:
  // Throws SystemError when the kernel gives no epoll descriptor.
  Poller();
  int fd() const { return epoll_.value(); }
  // False when the kernel refuses (out of memory or watches).
  bool add(int fd, std::uint32_t events, void* tag);
  void modify(int fd, std::uint32_t events, void* tag);
  // What is ready now; does not wait.
  std::span<epoll_event> ready(std::span<epoll_event> room);

 private:
  UniqueFd epoll_;
};

}  // namespace dtrun::rendezvous
