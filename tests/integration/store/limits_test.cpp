// Hostile and broken clients: acceptance rows C2, C3, C5, C6. Everybody else must not notice.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/client/tcp_store.hpp"
#include "rendezvous/wire/bytes.hpp"
#include "tests/catch.hpp"
#include "tests/integration/store/fixture.hpp"

using namespace dtrun;
using namespace dtrun::rendezvous;
using namespace store_test;
using namespace std::chrono_literals;

namespace {

// Sanitizers slow everything down several times; the thresholds are for the real thing.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kSlow = 20;
#else
constexpr double kSlow = 1;
#endif
constexpr double kP99 = 5 * kSlow;

template <class Condition>
bool within(std::chrono::milliseconds limit, Condition&& condition) {
  for (const auto deadline = Deadline::after(limit); !deadline.passed(); std::this_thread::sleep_for(5ms)) {
    if (condition()) return true;
  }
  return condition();
}

// Other programs share the machine: the best of a few tries is what the server can do.
double best_p99(std::uint16_t port) {
  double best = 1e9;
  for (int i = 0; i < 5 && best > kP99; ++i) best = std::min(best, connect_set_get_p99(port, 200));
  return best;
}

std::string hello() {
  std::string out;
  RequestWriter(out).validate();
  return out;
}

}  // namespace

TEST_CASE("absurd lengths and counts close the connection and take no memory (C3)") {
  TestServer server;
  CHECK(connect_set_get_p99(server.port(), 10) < 1e6);
  const auto before = resident_bytes();
  for (const auto length : {(std::uint64_t{8} << 20) + 1, std::uint64_t{1} << 32, std::uint64_t{1} << 61,
                            std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    // SET, GET, CHECK, WAIT, MULTI_GET, MULTI_SET, QUEUE_PUSH, BARRIER: a length or a count comes first in all of them.
    for (const char op : {1, 3, 5, 6, 10, 11, 14, 18}) {
      RawClient client(server.port());
      auto bytes = hello() + op;
      append_integer(bytes, length);
      client.send(bytes);
      CHECK(client.closed_within(2000));
    }
    RawClient value(server.port());
    auto bytes = hello() + '\1';
    append_bytes(bytes, "/k");
    append_integer(bytes, length);
    value.send(bytes);
    CHECK(value.closed_within(2000));
    RawClient old(server.port());
    std::string of_1x(1, '\2');
    append_integer(of_1x, length);
    old.send(of_1x);
    CHECK(old.closed_within(2000));
  }
  CHECK(resident_bytes() < before + (std::size_t{1} << 20) * static_cast<std::size_t>(kSlow));
  CHECK(best_p99(server.port()) < kP99);
}

TEST_CASE("slow and half-open clients are closed in time and nobody else notices (C2)") {
  StoreServerOptions options;
  options.limits.handshake = 300ms;
  options.limits.partial_request = 600ms;
  options.limits.silent_connections = 0;
  TestServer server(options);
  std::vector<RawClient> silent, half_opening, half_request, trickling;
  for (int i = 0; i < 250; ++i) {
    silent.emplace_back(server.port());
    half_opening.emplace_back(server.port());
    half_opening.back().send(std::string("\0\xce", 2));
    half_request.emplace_back(server.port());
    half_request.back().send(hello() + std::string("\1\5\0\0\0\0\0\0\0/k", 11));
    trickling.emplace_back(server.port());
    trickling.back().send(hello() + std::string("\1\100\0\0\0\0\0\0\0", 9));
  }
  CHECK(best_p99(server.port()) < kP99);
  // A byte now and then does not keep a request open.
  bool trickles_end = within(5s, [&] {
    bool all = true;
    for (auto& client : trickling) {
      if (client.fd() < 0) continue;
      client.send("x");
      if (client.closed_within(0)) {
        client.reset();
      } else {
        all = false;
      }
    }
    return all;
  });
  CHECK(trickles_end);
  for (auto* group : {&silent, &half_opening, &half_request}) {
    for (auto& client : *group) CHECK(client.closed_within(3000));
  }
  CHECK(within(3s, [&] { return server.connections() == 0; }));
}

TEST_CASE("the silent second connection of 1.13 clients stays, above the cap the oldest go") {
  StoreServerOptions options;
  options.limits.handshake = 100ms;
  options.limits.silent_connections = 3;
  TestServer server(options);
  std::vector<RawClient> silent;
  for (int i = 0; i < 3; ++i) silent.emplace_back(server.port());
  std::this_thread::sleep_for(300ms);
  for (auto& client : silent) CHECK_FALSE(client.closed_within(0));
  // A 1.x client that speaks brings the right to one more.
  RawClient old(server.port());
  old.send("\6");
  CHECK(old.receive(8) == std::string(8, '\0'));
  silent.emplace_back(server.port());
  std::this_thread::sleep_for(300ms);
  for (auto& client : silent) CHECK_FALSE(client.closed_within(0));
  silent.emplace_back(server.port());
  CHECK(silent[0].closed_within(3000));
  CHECK_FALSE(silent[1].closed_within(0));
  // Having been silent for long, it may still begin.
  silent[1].send("\6");
  CHECK(silent[1].receive(8) == std::string(8, '\0'));

  StoreServerOptions strict = options;
  strict.serve_1x = false;
  TestServer only_2x(strict);
  RawClient waiting(only_2x.port());
  CHECK(waiting.closed_within(3000));
  RawClient refused(only_2x.port());
  refused.send("\6");
  CHECK(refused.closed_within(3000));
  CHECK(connect_set_get_p99(only_2x.port(), 5) < 1e6);
}

TEST_CASE("a client that does not read is closed at the output limit, others are served (C5)") {
  TestServer server;
  auto writer_client = RawClient::v2(server.port());
  const std::string value(std::size_t{1} << 20, 'v');
  writer_client.request([&](RequestWriter& writer) { writer.key_value(Opcode::set, "/big", value); });
  std::vector<RawClient> offenders;
  for (int i = 0; i < 4; ++i) {
    offenders.push_back(RawClient::v2(server.port(), 4096));
    std::string all;
    RequestWriter writer(all);
    for (int k = 0; k < 64; ++k) writer.key(Opcode::get, "/big");
    offenders.back().send(all);
  }
  CHECK(best_p99(server.port()) < kP99);
  CHECK(within(5s, [&] { return server.connections() <= 1; }));
  // 64 MB that are read arrive whole.
  auto reader = RawClient::v2(server.port());
  for (int k = 0; k < 64; ++k) {
    reader.request([](RequestWriter& writer) { writer.key(Opcode::get, "/big"); });
    CHECK(reader.receive(8 + value.size()).size() == 8 + value.size());
  }
}

TEST_CASE("half requests of all clients together have a limit") {
  StoreServerOptions options;
  options.limits.buffered_bytes = 4 << 20;
  TestServer server(options);
  const std::string part(1 << 20, 'x');
  std::vector<RawClient> clients;
  int closed = 0;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(RawClient::v2(server.port()));
    auto bytes = std::string("\1\2\0\0\0\0\0\0\0/k", 11);
    append_integer<std::uint64_t>(bytes, 4 << 20);
    clients.back().send(bytes + part);
  }
  CHECK(within(5s, [&] { return server.connections() <= 4; }));
  for (auto& client : clients) closed += client.closed_within(0) ? 1 : 0;
  CHECK(closed >= 4);
  CHECK(closed < 8);
  CHECK(best_p99(server.port()) < kP99);
}

TEST_CASE("a full store refuses more, not what is there") {
  StoreServerOptions options;
  options.limits.stored_bytes = 1 << 20;
  TestServer server(options);
  const std::string part(100'000, 'x');
  auto client = RawClient::v2(server.port());
  bool refused = false;
  for (int i = 0; i < 20 && !refused; ++i) {
    client.request([&](RequestWriter& writer) {
      writer.key_value(Opcode::set, "/" + std::to_string(i), part);
      writer.bare(Opcode::num_keys);
    });
    refused = client.receive(8).size() < 8;
    if (refused) CHECK(i >= 9);
  }
  CHECK(refused);
  auto other = RawClient::v2(server.port());
  other.request([](RequestWriter& writer) { writer.key(Opcode::get, "/0"); });
  CHECK(other.receive(8 + part.size()).size() == 8 + part.size());
}

TEST_CASE("too many connections are turned away") {
  StoreServerOptions options;
  options.limits.connections = 3;
  TestServer server(options);
  std::vector<RawClient> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(RawClient::v2(server.port()));
  RawClient extra(server.port());
  CHECK(extra.closed_within(3000));
  clients.pop_back();
  CHECK(within(3s, [&] {
    try {
      RawClient::v2(server.port());
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }));
}

TEST_CASE("WATCH_KEY registrations have a limit, and a watcher that does not read is closed") {
  StoreServerOptions options;
  options.limits.watches_per_client = 2;
  options.limits.unsent_bytes_per_client = 1 << 20;
  TestServer server(options);
  RawClient greedy(server.port());
  for (const auto* key : {"/a", "/b", "/c"}) {
    greedy.request([&](RequestWriter& writer) { writer.key(Opcode::watch_key, key); }, Dialect::v1);
  }
  CHECK(greedy.receive(3) == "\3\3");
  RawClient watcher(server.port(), 4096);
  watcher.request([](RequestWriter& writer) { writer.key(Opcode::watch_key, "/w"); }, Dialect::v1);
  CHECK(watcher.receive(1) == "\3");
  auto setter = RawClient::v2(server.port());
  const std::string value(500'000, 'v');
  for (int i = 0; i < 40; ++i) {
    setter.request([&](RequestWriter& writer) { writer.key_value(Opcode::set, "/w", value); });
  }
  CHECK(within(5s, [&] { return server.connections() == 1; }));
}

TEST_CASE("out of file descriptors: no crash, those inside are served, and the door opens again within 1 s (C6)") {
  int output[2];
  REQUIRE(::pipe2(output, O_CLOEXEC) == 0);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    const rlimit limit{128, 128};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ::dup2(output[1], 1);
    ::execl(DTRUN_STORE_TOOL, "dtrun-store", "serve", "--port", "0", nullptr);
    ::_exit(127);
  }
  ::close(output[1]);
  std::string line;
  for (char c; ::read(output[0], &c, 1) == 1 && c != '\n';) line += c;
  REQUIRE(line.rfind("listening 127.0.0.1:", 0) == 0);
  const auto port = static_cast<std::uint16_t>(std::stoi(line.substr(line.rfind(':') + 1)));
  {
    auto inside = RawClient::v2(port);
    std::vector<RawClient> crowd;
    for (int i = 0; i < 300; ++i) crowd.emplace_back(port);
    std::this_thread::sleep_for(200ms);
    inside.request([](RequestWriter& writer) { writer.key_number(Opcode::add, "/n", 1); });
    CHECK(inside.receive(8) == std::string("\1\0\0\0\0\0\0\0", 8));
    CHECK(::waitpid(pid, nullptr, WNOHANG) == 0);
    crowd.clear();
    const auto begin = Clock::now();
    auto late = RawClient::v2(port);
    CHECK(Clock::now() - begin < 1s * kSlow);
    late.request([](RequestWriter& writer) { writer.key_number(Opcode::add, "/n", 1); });
    CHECK(late.receive(8) == std::string("\2\0\0\0\0\0\0\0", 8));
  }
  ::kill(pid, SIGTERM);
  int status = 0;
  CHECK(within(5s, [&] { return ::waitpid(pid, &status, WNOHANG) == pid; }));
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  ::close(output[0]);
}
