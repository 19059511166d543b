// Many clients at once, some of them dying: acceptance rows C7 (scripts of operations) and C9 (linearizable, no lost
// wake-up).
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "rendezvous/base/error.hpp"
#include "rendezvous/client/tcp_store.hpp"
#include "rendezvous/store/key_space.hpp"
#include "rendezvous/wire/bytes.hpp"
#include "tests/catch.hpp"
#include "tests/integration/store/fixture.hpp"

using namespace dtrun;
using namespace dtrun::rendezvous;
using namespace store_test;
using namespace std::chrono_literals;

namespace {

TcpStoreOptions to(std::uint16_t port) { return {"127.0.0.1", port, 30s, std::nullopt}; }

}  // namespace

TEST_CASE("counters, compare-and-set and queues lose nothing while other clients die (C9)") {
  TestServer server;
  constexpr int kClients = 8, kRounds = 400;
  std::atomic<bool> stop = false;
  std::atomic<int> failures = 0;
  // Each dies in the middle of something: a half request, a wait, a barrier, an unread answer.
  std::thread killer([&] {
    std::mt19937 random(3);
    while (!stop) {
      auto victim = RawClient::v2(server.port());
      std::string bytes;
      RequestWriter writer(bytes);
      const std::vector<std::string> keys{"/count", "/never"};
      switch (random() % 4) {
        case 0:
          writer.key_value(Opcode::set, "/torn", std::string(1000, 'x'));
          break;
        case 1:
          writer.keys(Opcode::wait, keys);
          break;
        case 2:
          writer.key_number(Opcode::barrier, "/b" + std::to_string(random()), 2);
          break;
        default:
          writer.key(Opcode::get, "/count");
          break;
      }
      victim.send(std::string_view(bytes).substr(0, 1 + random() % bytes.size()));
      victim.reset();
    }
  });
  std::vector<std::vector<std::int64_t>> seen(kClients);
  std::vector<std::thread> threads;
  for (int c = 0; c < kClients; ++c) {
    threads.emplace_back([&, c] {
      try {
        TcpStore store(to(server.port()));
        for (int i = 0; i < kRounds; ++i) {
          seen[static_cast<std::size_t>(c)].push_back(store.add("count", 1));
          for (auto now = store.compare_set("cas", "", "0");;) {
            const auto next = std::to_string(std::stoll(now) + 1) + ":" + std::to_string(c) + "." + std::to_string(i);
            const auto after = store.compare_set("cas", now, next);
            if (after == next) break;
            now = after;
          }
          store.queue_push("queue", std::to_string(c * kRounds + i));
        }
      } catch (const std::exception&) {
        ++failures;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  stop = true;
  killer.join();
  CHECK(failures == 0);
  // Every sum was handed out once, and each client saw them grow.
  std::set<std::int64_t> all;
  for (const auto& one : seen) {
    CHECK(std::is_sorted(one.begin(), one.end()));
    all.insert(one.begin(), one.end());
  }
  CHECK(all.size() == kClients * kRounds);
  CHECK(*all.rbegin() == kClients * kRounds);
  TcpStore store(to(server.port()));
  CHECK(std::stoll(store.get("cas")) == kClients * kRounds);
  std::set<std::string> popped;
  while (auto element = store.queue_try_pop("queue")) popped.insert(*element);
  CHECK(popped.size() == kClients * kRounds);
  CHECK_FALSE(store.check(std::vector<std::string>{"torn-never"}));
}

TEST_CASE("no wake-up is lost: waits that race with writes, and queue elements whose taker died (C9)") {
  TestServer server;
  TcpStore a(to(server.port())), b(to(server.port()));
  for (int i = 0; i < 500; ++i) {
    const auto key = "k" + std::to_string(i);
    std::thread writer([&] { b.set(key, "v"); });
    CHECK(a.get(key, 20s) == "v");
    writer.join();
  }
  for (int i = 0; i < 50; ++i) {
    auto dying = RawClient::v2(server.port());
    const std::vector<std::string> queue{"/q"};
    dying.request([&](RequestWriter& writer) { writer.keys(Opcode::wait, queue); });
    std::string element;
    std::thread waiting([&] { element = a.queue_pop("q", 20s); });
    std::this_thread::sleep_for(1ms);
    b.queue_push("q", "e");
    if (i % 2 == 0) dying.receive(1, 2000);
    dying.reset();
    waiting.join();
    CHECK(element == "e");
  }
}

TEST_CASE("a thousand blocked waiters all wake") {
  TestServer server;
  std::vector<RawClient> waiters;
  const std::vector<std::string> keys{"/go", "/steady"};
  for (int i = 0; i < 1000; ++i) {
    waiters.push_back(RawClient::v2(server.port()));
    waiters.back().request([&](RequestWriter& writer) { writer.keys(Opcode::wait, keys); });
  }
  TcpStore store(to(server.port()));
  store.set("steady", "");
  CHECK(waiters.front().receive(1, 20).empty());
  store.set("go", "");
  for (auto& waiter : waiters) CHECK(waiter.receive(1) == std::string(1, '\0'));
}

// The server against the rules in memory: the same script must give the same answers, whatever the pieces in which it
// travels.
TEST_CASE("random scripts of 50 operations agree with the rules, in any pieces (C7)") {
  TestServer server;
  std::mt19937 random(11);
  for (int script = 0; script < 60; ++script) {
    KeySpace model;
    auto client = RawClient::v2(server.port());
    const auto prefix = "/" + std::to_string(script) + "-";
    std::string bytes, expected;
    RequestWriter writer(bytes);
    for (int i = 0; i < 50; ++i) {
      const auto key = prefix + std::to_string(random() % 6);
      const auto value = std::to_string(random() % 100);
      switch (random() % 9) {
        case 0:
          writer.key_value(Opcode::set, key, value);
          model.set(key, value);
          break;
        case 1:
          writer.key_value(Opcode::append, key, "7");
          model.append(key, "7");
          break;
        case 2: {
          writer.key(Opcode::get, key);
          const auto* now = model.find(key);
          append_bytes(expected, now ? *now : "");
          break;
        }
        case 3: {
          const auto sum = model.add(key, 3);
          // Ten sevens in a row leave the range: then the server would close.
          if (!sum) break;
          writer.key_number(Opcode::add, key, 3);
          append_integer(expected, *sum);
          break;
        }
        case 4:
          writer.compare_set(key, i % 2 ? "" : value, "5");
          append_bytes(expected, model.compare_set(key, i % 2 ? "" : value, "5"));
          break;
        case 5: {
          const std::vector<std::string> keys{key, prefix + "0"};
          writer.keys(Opcode::check, keys);
          expected.push_back(model.exists(keys[0]) && model.exists(keys[1]) ? 0 : 1);
          break;
        }
        case 6:
          writer.key(Opcode::delete_key, key);
          append_integer<std::int64_t>(expected, model.erase(key) ? 1 : 0);
          break;
        case 7:
          writer.key_value(Opcode::queue_push, key, value);
          model.queue_push(key, value);
          break;
        default: {
          writer.key(Opcode::queue_pop, key);
          append_integer<std::int64_t>(expected, static_cast<std::int64_t>(model.queue_length(key)));
          if (auto front = model.queue_pop(key)) append_bytes(expected, *front);
          break;
        }
      }
    }
    for (std::size_t at = 0; at < bytes.size();) {
      const auto size = script % 3 == 0 ? bytes.size() : 1 + random() % 40;
      client.send(std::string_view(bytes).substr(at, size));
      at += size;
    }
    CHECK(client.receive(expected.size()) == expected);
  }
}
