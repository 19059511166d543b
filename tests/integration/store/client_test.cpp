// TcpStore against a real server, and against servers that misbehave.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <thread>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/client/tcp_store.hpp"
#include "tests/catch.hpp"
#include "tests/integration/store/fixture.hpp"

using namespace dtrun;
using namespace dtrun::rendezvous;
using namespace store_test;
using namespace std::chrono_literals;
using Keys = std::vector<std::string>;

namespace {

TcpStoreOptions to(std::uint16_t port, Store::Duration timeout = 10s) {
  return {"127.0.0.1", port, timeout, std::nullopt};
}

// Listens, and does with the first connection what it is told. Port only when `serve` is empty: nobody accepts.
class OddServer {
 public:
  explicit OddServer(std::function<void(int)> serve) : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(listener_.value(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener_.value(), 8) == 0);
    REQUIRE(::getsockname(listener_.value(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    if (serve) {
      thread_ = std::thread([this, serve] {
        const UniqueFd client(::accept4(listener_.value(), nullptr, nullptr, SOCK_CLOEXEC));
        serve(client.value());
      });
    }
  }
  ~OddServer() {
    if (thread_.joinable()) thread_.join();
  }
  std::uint16_t port() const { return port_; }

 private:
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

std::string read_some(int fd, std::size_t size) {
  std::string bytes(size, '\0');
  const auto got = ::recv(fd, bytes.data(), size, MSG_WAITALL);
  bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return bytes;
}

void greet(int fd) {
  const auto hello = read_some(fd, 10);
  (void)!::send(fd, hello.data() + 6, 4, MSG_NOSIGNAL);
}

std::uint16_t free_port() { return OddServer({}).port(); }

}  // namespace

TEST_CASE("a wait that times out names the keys and leaves the store usable") {
  TestServer server;
  TcpStore store(to(server.port()));
  const auto begin = Clock::now();
  CHECK_THROWS_WITH(store.wait(Keys{"a", "b"}, 60ms), Catch::Contains("\"a\", \"b\"") && Catch::Contains("60 ms"));
  CHECK(Clock::now() - begin < 5s);
  CHECK_THROWS_AS(store.get("a", 0ms), TimeoutError);
  CHECK(store.add("n", 1) == 1);
  store.set("a", "1");
  store.set("b", "2");
  store.wait(Keys{"a", "b"}, 0ms + 1s);
  CHECK(store.num_keys() == 3);
}

TEST_CASE("another client's write wakes the reader") {
  TestServer server;
  TcpStore reader(to(server.port())), writer(to(server.port()));
  std::thread late([&] {
    std::this_thread::sleep_for(50ms);
    writer.set("k", "v");
  });
  CHECK(reader.get("k") == "v");
  late.join();
  std::thread pusher([&] {
    std::this_thread::sleep_for(50ms);
    writer.queue_push("q", "e");
  });
  CHECK(reader.queue_pop("q", 10s) == "e");
  pusher.join();
  std::thread other([&] { writer.barrier("b", 2, 10s); });
  reader.barrier("b", 2, 10s);
  other.join();
}

TEST_CASE("a plain key does not make queue_pop spin or hang") {
  TestServer server;
  TcpStore store(to(server.port()));
  store.set("k", "v");
  CHECK_THROWS_AS(store.queue_pop("k", 200ms), TimeoutError);
  CHECK(store.get("k") == "v");
}

TEST_CASE("one client may be used by many threads, and clone() gives a line of its own") {
  TestServer server;
  TcpStore store(to(server.port()));
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) store.add("n", 1);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(store.add("n", 0) == 1600);
  const auto second = store.clone();
  std::thread waiting([&] { second->wait(Keys{"later"}, 10s); });
  store.set("later", "");
  waiting.join();
  // Waiting for one's turn has a deadline as well.
  std::atomic<bool> blocked = true, timed_out = false;
  std::thread holder([&] {  // no Catch in here: its assertions are for one thread
    try {
      store.wait(Keys{"never"}, 400ms);
    } catch (const TimeoutError&) {
      timed_out = true;
    }
    blocked = false;
  });
  std::this_thread::sleep_for(50ms);
  CHECK_THROWS_WITH(store.wait(Keys{"later"}, 50ms), Catch::Contains("another call"));
  CHECK(blocked);
  holder.join();
  CHECK(timed_out);
}

TEST_CASE("interrupt ends the call in progress") {
  TestServer server;
  TcpStore store(to(server.port()));
  std::thread later([&] {
    std::this_thread::sleep_for(50ms);
    store.interrupt();
  });
  const auto begin = Clock::now();
  CHECK_THROWS_AS(store.get("never", 60s), RendezvousError);
  CHECK(Clock::now() - begin < 5s);
  later.join();
  CHECK_THROWS_AS(store.num_keys(), RendezvousError);
}

TEST_CASE("the error tells refused from no answer from not found") {
  CHECK_THROWS_WITH(TcpStore(to(free_port(), 200ms)), Catch::Contains("refused") && Catch::Contains("127.0.0.1:"));
  CHECK_THROWS_AS(TcpStore(to(free_port(), 200ms)), TimeoutError);
  CHECK_THROWS_WITH(TcpStore({"no-such-host.invalid", 1, 300ms, std::nullopt}), Catch::Contains("name not resolved"));
  const OddServer mute({});
  const auto begin = Clock::now();
  CHECK_THROWS_WITH(TcpStore(to(mute.port(), 300ms)), Catch::Contains("no answer"));
  CHECK(Clock::now() - begin < 3s);
  const OddServer nonsense([](int fd) {
    read_some(fd, 10);
    (void)!::send(fd, "HTTP", 4, MSG_NOSIGNAL);
  });
  CHECK_THROWS_WITH(TcpStore(to(nonsense.port())), Catch::Contains("does not speak"));
}

TEST_CASE("a client that comes before its server waits for it") {
  StoreServerOptions options;
  options.port = free_port();
  std::unique_ptr<TestServer> server;
  std::thread later([&] {
    std::this_thread::sleep_for(150ms);
    server = std::make_unique<TestServer>(options);
  });
  TcpStore store(to(options.port));
  CHECK(store.add("n", 1) == 1);
  later.join();
}

TEST_CASE("a server that goes away breaks the store for good, at once") {
  auto server = std::make_unique<TestServer>();
  TcpStore store(to(server->port()));
  std::thread later([&] {
    std::this_thread::sleep_for(50ms);
    server.reset();
  });
  const auto begin = Clock::now();
  CHECK_THROWS_WITH(store.get("k", 60s), Catch::Contains("closed by the server") || Catch::Contains("reset"));
  CHECK(Clock::now() - begin < 5s);
  later.join();
  CHECK_THROWS_WITH(store.set("k", "v"), Catch::Contains("broke earlier"));
}

TEST_CASE("CANCEL_WAIT is understood in both orders") {
  const std::string wait(20, '\0');
  SECTION("the wake-up crossed the cancellation: the wait counts as satisfied") {
    const OddServer server([&](int fd) {
      greet(fd);
      read_some(fd, 1 + 8 + 8 + 2 + 1);
      (void)!::send(fd, "\0\1", 2, MSG_NOSIGNAL);
      read_some(fd, 1);
      (void)!::send(fd, "\7\0\0\0\0\0\0\0", 8, MSG_NOSIGNAL);
      read_some(fd, 1);
    });
    TcpStore store(to(server.port()));
    store.wait(Keys{"k"}, 60ms);
    CHECK(store.num_keys() == 7);
  }
  SECTION("nonsense breaks the store") {
    const OddServer server([&](int fd) {
      greet(fd);
      read_some(fd, 1 + 8 + 8 + 2 + 1);
      (void)!::send(fd, "\5", 1, MSG_NOSIGNAL);
      read_some(fd, 1);
    });
    TcpStore store(to(server.port()));
    CHECK_THROWS_WITH(store.wait(Keys{"k"}, 60ms), Catch::Contains("nonsense"));
    CHECK_THROWS_AS(store.num_keys(), RendezvousError);
  }
  SECTION("no answer to the cancellation ends too") {
    std::atomic<bool> done = false;
    const OddServer server([&](int fd) {
      greet(fd);
      while (!done) std::this_thread::sleep_for(10ms);
      read_some(fd, 1);
    });
    TcpStore store(to(server.port()));
    CHECK_THROWS_AS(store.wait(Keys{"k"}, 60ms), TimeoutError);
    done = true;
  }
}

TEST_CASE("an absurd length in an answer takes no memory") {
  const OddServer server([](int fd) {
    greet(fd);
    read_some(fd, 1 + 8 + 2 + 8 + 8);
    (void)!::send(fd, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8, MSG_NOSIGNAL);
    read_some(fd, 1);
  });
  TcpStore store(to(server.port()));
  CHECK_THROWS_WITH(store.compare_set("k", "", ""), Catch::Contains("announces"));
}

TEST_CASE("large values and many keys go through whole") {
  TestServer server;
  TcpStore store(to(server.port(), 60s));
  const std::string large(8 << 20, 'L');
  store.set("large", large);
  CHECK(store.get("large") == large);
  std::vector<std::pair<std::string, std::string>> items;
  Keys keys;
  for (int i = 0; i < 20'000; ++i) {
    keys.push_back("key" + std::to_string(i));
    items.emplace_back(keys.back(), std::to_string(i));
  }
  store.multi_set(items);
  const auto values = store.multi_get(keys, 30s);
  REQUIRE(values.size() == keys.size());
  CHECK(values.back() == "19999");
  CHECK(store.list_keys().size() == 20'001);
  CHECK_THROWS_AS(store.set("too large", large + "!"), RendezvousError);
}

TEST_CASE("the local address is the one towards the server") {
  TestServer server;
  CHECK(TcpStore(to(server.port())).local_address() == "127.0.0.1");
}

TEST_CASE("the server binds the chosen address only and says why it cannot") {
  StoreServerOptions options;
  options.host = "203.0.113.7";
  CHECK_THROWS_WITH(TestServer(options), Catch::Contains("not an address of this machine"));
  TestServer first;
  options.host = "127.0.0.1";
  options.port = first.port();
  CHECK_THROWS_WITH(TestServer(options), Catch::Contains("in use"));
  StoreServerOptions other;
  other.host = "127.0.0.2";
  other.port = first.port();
  TestServer second(other);
  CHECK(second.port() == first.port());
}
