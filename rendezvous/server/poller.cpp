#include "rendezvous/server/poller.hpp"

#include "rendezvous/base/error.hpp"

namespace dtrun::rendezvous {

Poller::Poller() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw_errno("store", "epoll_create1");
}

bool Poller::add(int fd, std::uint32_t events, void* tag) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = tag;
  return ::epoll_ctl(epoll_.value(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void Poller::modify(int fd, std::uint32_t events, void* tag) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = tag;
  DTRUN_ASSERT(::epoll_ctl(epoll_.value(), EPOLL_CTL_MOD, fd, &event) == 0);
}

std::span<epoll_event> Poller::ready(std::span<epoll_event> room) {
  const int count = ::epoll_wait(epoll_.value(), room.data(), static_cast<int>(room.size()), 0);
  return room.first(static_cast<std::size_t>(count < 0 ? 0 : count));
}

}  // namespace dtrun::rendezvous
