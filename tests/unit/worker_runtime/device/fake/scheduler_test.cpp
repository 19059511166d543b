#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <stdexcept>
#include <thread>

#include "tests/unit/worker_runtime/device/fake/support.hpp"

namespace dtrun::runtime::test {
namespace {

using Catch::Matchers::Contains;
using fake::Poll;

std::vector<std::string> names_run() {
  std::vector<std::string> names;
  for (const auto& ran : fake::history()) names.push_back(ran.name);
  return names;
}

// Three streams of four operations; all waited for.
std::vector<std::string> order_of(const fake::FakeCudaConfig& config) {
  Accelerator accelerator(config);
  TestStream streams[3];
  for (int i = 0; i < 4; ++i) {
    for (int s = 0; s < 3; ++s) ok(mark(std::to_string(s) + std::to_string(i), streams[s].handle));
  }
  CHECK(names_run().empty());  // calls only queue
  ok(api().device_synchronize());
  return names_run();
}

std::size_t place(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
}

}  // namespace

TEST_CASE("fake scheduler: a stream keeps its order, streams among each other have many, and a seed has one") {
  std::set<std::vector<std::string>> orders;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto order = order_of(config_of(seed));
    REQUIRE(order.size() == 12);
    for (int s = 0; s < 3; ++s) {
      for (int i = 1; i < 4; ++i)
        REQUIRE(place(order, std::to_string(s) + std::to_string(i - 1)) <
                place(order, std::to_string(s) + std::to_string(i)));
    }
    orders.insert(order);
    REQUIRE(order == order_of(config_of(seed)));
  }
  CHECK(orders.size() > 150);
}

TEST_CASE("fake scheduler: fifo is the order of the calls, a starved stream comes last") {
  auto calls = order_of(config_of(3, Strategy::fifo));
  CHECK(calls == std::vector<std::string>{"00", "10", "20", "01", "11", "21", "02", "12", "22", "03", "13", "23"});
  for (int starved = 1; starved <= 3; ++starved) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      auto config = config_of(seed, Strategy::starve);
      config.starved = starved;
      const auto order = order_of(config);
      for (std::size_t i = 8; i < 12; ++i) REQUIRE(order[i][0] == '0' + starved - 1);
    }
  }
}

TEST_CASE("fake scheduler: late runs what the host waits for and nothing else") {
  Accelerator accelerator(config_of(1, Strategy::late));
  TestStream needed, other, last;
  TestEvent event;
  ok(mark("needed", needed.handle));
  ok(record(event, needed));
  ok(mark("not needed", needed.handle));
  ok(mark("other", other.handle));
  ok(wait(last, event));
  ok(mark("last", last.handle));
  ok(api().stream_synchronize(last.handle));
  CHECK(names_run() == std::vector<std::string>{"needed", "record", "wait", "last"});
  ok(api().device_synchronize());
  CHECK(names_run().size() == 6);
}

TEST_CASE("fake scheduler: what waits for an event runs behind it, whatever the order") {
  for (const auto strategy : {Strategy::random, Strategy::fifo, Strategy::late, Strategy::starve}) {
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      Accelerator accelerator(config_of(seed, strategy));
      TestStream a, b;
      TestEvent event;
      ok(wait(b, event));  // never recorded: nothing
      ok(mark("before", b.handle));
      ok(mark("one", a.handle));
      ok(record(event, a));
      ok(wait(b, event));
      ok(mark("two", b.handle));
      ok(mark("three", a.handle));
      ok(record(event, a));  // again: the wait is for the first time
      ok(finish(event));
      ok(api().device_synchronize());
      const auto names = names_run();
      REQUIRE(place(names, "one") < place(names, "two"));
      REQUIRE(std::ranges::count(names, "wait") == 1);
    }
  }
}

TEST_CASE("fake scheduler: waiting for one stream need not run the others, asking runs some") {
  std::set<std::size_t> lengths;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Accelerator accelerator(config_of(seed));
    TestStream a, b;
    for (int i = 0; i < 300; ++i) {
      ok(mark("a", a.handle));
      ok(mark("b", b.handle));
    }
    CHECK(api().stream_query(b.handle) == cuda::kNotReady);
    lengths.insert(names_run().size());
    REQUIRE(names_run().size() <= 128);
    int asked = 1;
    while (api().stream_query(b.handle) == cuda::kNotReady) REQUIRE(++asked < 1000);
    ok(api().device_synchronize());
  }
  CHECK(lengths.size() > 10);
}

TEST_CASE("fake scheduler: a queue longer than 1024 makes the call wait") {
  Accelerator accelerator(config_of(1));
  TestStream stream;
  for (int i = 0; i < 1024; ++i) ok(mark("x", stream.handle));
  CHECK(names_run().empty());
  ok(mark("x", stream.handle));
  CHECK(names_run().size() >= 512);
  ok(api().stream_synchronize(stream.handle));
  CHECK(names_run().size() == 1025);
}

TEST_CASE("fake scheduler: what is on a destroyed stream still runs") {
  Accelerator accelerator(config_of(1));
  TestStream other;
  TestEvent event;
  {
    TestStream stream;
    ok(mark("left", stream.handle));
    ok(record(event, stream));
  }
  ok(wait(other, event));
  ok(api().stream_synchronize(other.handle));
  CHECK(place(names_run(), "left") == 0);
}

TEST_CASE("fake scheduler: while one operation waits, other streams go on") {
  Accelerator accelerator(config_of(5));
  TestStream collective, compute;
  TestEvent arrived;
  bool other_ran = false;
  int asked = 0;
  ok(fake::enqueue(collective.handle, {"all-reduce", {}, [&] {
                                         ++asked;
                                         return other_ran && asked > 3 ? Poll::done : Poll::again;
                                       }}));
  ok(mark("behind", collective.handle));
  ok(fake::enqueue(compute.handle, {"other", {}, [&] {
                                      other_ran = true;
                                      return Poll::done;
                                    }}));
  ok(api().stream_synchronize(collective.handle));
  CHECK(names_run() == std::vector<std::string>{"other", "all-reduce", "behind"});
  CHECK(asked == 4);
}

TEST_CASE("fake scheduler: another thread ends a wait that would never end, and calls of others do not block") {
  Accelerator accelerator(config_of(5));
  TestStream collective, compute;
  TestEvent event;
  std::atomic<bool> aborted = false;
  ok(fake::enqueue(collective.handle, {"all-reduce", {}, [&] { return aborted.load() ? Poll::failed : Poll::again; }}));
  ok(record(event, collective));
  std::thread watchdog([&] {
    for (int i = 0; i < 20; ++i) {
      if (api().event_query(event.handle) != cuda::kNotReady) return;
      mark("from the watchdog", compute.handle);
    }
    aborted = true;
  });
  CHECK(api().stream_synchronize(collective.handle) == fake::kLaunchFailure);
  watchdog.join();
  CHECK_THAT(api().get_error_string(fake::kLaunchFailure), Contains("all-reduce of stream 1"));
  CHECK(api().event_query(event.handle) == fake::kLaunchFailure);
  CHECK(mark("more", compute.handle) == fake::kLaunchFailure);
}

TEST_CASE("fake scheduler: two threads wait for their own streams at once") {
  Accelerator accelerator(config_of(9));
  TestStream a, b;
  std::vector<int> ran(2);  // no lock: one operation runs at a time
  const auto work = [&](TestStream& stream) {
    for (int round = 0; round < 50; ++round) {
      for (int i = 0; i < 10; ++i) fake::enqueue(stream.handle, {"count", {}, [&] { return ++ran[0], Poll::done; }});
      api().stream_synchronize(stream.handle);
    }
  };
  std::thread other([&] { work(b); });
  work(a);
  other.join();
  CHECK(ran[0] == 1000);
}

TEST_CASE("fake scheduler: what an operation throws is the text of the error") {
  Accelerator accelerator(config_of(1));
  TestStream stream;
  ok(fake::enqueue(stream.handle, {"all-gather", {}, []() -> Poll { throw std::runtime_error("rank 3 left"); }}));
  CHECK(api().stream_synchronize(stream.handle) == fake::kLaunchFailure);
  CHECK_THAT(api().get_error_string(fake::kLaunchFailure), Contains("all-gather") && Contains("rank 3 left"));
}

}  // namespace dtrun::runtime::test
