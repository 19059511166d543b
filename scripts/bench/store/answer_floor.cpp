// answer_floor: what the kernel alone takes for one small answer over TCP, the lower bound for any store server here.
// One thread, one epoll set, one recv and one send per request; it adds up ADDs known by their first byte and parses
// nothing, so only the row "add" of store_load, one counter, can be run against it. Prints "listening HOST:PORT" like
// dtrun-store; ends with SIGTERM.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_set>

namespace {

constexpr int kEvents = 256;
constexpr char kAdd = 4;
constexpr int kHello = 10;  // VALIDATE with its magic, PING with its nonce of 4 bytes

void watch(int set, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) std::abort();
}

int open_listener() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(fd, any, size) != 0 || ::listen(fd, 1024) != 0 || ::getsockname(fd, any, &size) != 0) std::abort();
  std::printf("listening 127.0.0.1:%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  return fd;
}

}  // namespace

int main() {
  const int listener = open_listener();
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  watch(set, listener);
  std::unordered_set<int> greeted;
  char buffer[65536];
  std::int64_t counter = 0;
  for (;;) {
    epoll_event events[kEvents];
    const int count = ::epoll_wait(set, events, kEvents, -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listener) {
        const int client = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (client >= 0) watch(set, client);
        continue;
      }
      const auto got = ::recv(fd, buffer, sizeof buffer, 0);
      if (got <= 0) {
        greeted.erase(fd);
        ::close(fd);
      } else if (!greeted.insert(fd).second) {
        std::int64_t amount = 0;
        if (got >= 8) std::memcpy(&amount, buffer + got - 8, 8);
        counter = buffer[0] == kAdd ? counter + amount : 0;  // a run starts with SETs
        (void)!::send(fd, &counter, sizeof counter, MSG_NOSIGNAL);
      } else if (got >= kHello) {
        (void)!::send(fd, buffer + kHello - 4, 4, MSG_NOSIGNAL);
      }
    }
  }
}
