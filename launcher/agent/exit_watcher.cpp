#include "launcher/agent/exit_watcher.hpp"

#include <sys/epoll.h>

#include <array>

#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

int make_set() {
  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  if (fd < 0) throw_errno("launcher", "epoll_create1");
  return fd;
}

}  // namespace

ExitWatcher::ExitWatcher(boost::asio::io_context& io) : set_(io, make_set()) {}

void ExitWatcher::add(int pidfd, int index) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = static_cast<std::uint32_t>(index);
  if (::epoll_ctl(set_.native_handle(), EPOLL_CTL_ADD, pidfd, &event) != 0)
    throw_errno("launcher", "epoll_ctl on a pidfd");
}

void ExitWatcher::remove(int pidfd) noexcept { ::epoll_ctl(set_.native_handle(), EPOLL_CTL_DEL, pidfd, nullptr); }

void ExitWatcher::start(std::function<void(const std::vector<int>&)> ended) {
  ended_ = std::move(ended);
  wait();
}

void ExitWatcher::stop() noexcept {
  boost::system::error_code ignored;
  set_.cancel(ignored);
}

void ExitWatcher::wait() {
  set_.async_wait(boost::asio::posix::descriptor_base::wait_read, [this](const boost::system::error_code& error) {
    if (error) return;
    std::array<epoll_event, 64> events{};
    const int count = ::epoll_wait(set_.native_handle(), events.data(), static_cast<int>(events.size()), 0);
    std::vector<int> indices;
    for (int i = 0; i < count; ++i) indices.push_back(static_cast<int>(events[static_cast<std::size_t>(i)].data.u32));
    wait();  // before the callback: it may call stop()
    if (!indices.empty()) ended_(indices);
  });
}

}  // namespace dtrun::launcher
