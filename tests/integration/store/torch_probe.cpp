// torch_probe PORT [queues] [list] [barrier]: every operation of TcpStore against a server of PyTorch; exit code 1 and
// the reason when one differs. Started by torch_store_test.py.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>

#include "rendezvous/base/error.hpp"
#include "rendezvous/client/tcp_store.hpp"

using namespace dtrun;
using namespace dtrun::rendezvous;
using namespace std::chrono_literals;
using Keys = std::vector<std::string>;

namespace {

template <class Value, class Wanted>
void expect(const char* what, const Value& got, const Wanted& wanted) {
  if (got == wanted) return;
  std::printf("FAILED %s\n", what);
  std::exit(1);
}

template <class Call>
void expect_timeout(const char* what, Call&& call) {
  try {
    call();
  } catch (const TimeoutError&) {
    return;
  }
  expect(what, false, true);
}

void basics(TcpStore& a, TcpStore& b) {
  a.set("k1", "v1");
  a.set("empty", "");
  expect("get", a.get("k1"), "v1");
  expect("get empty", a.get("empty"), "");
  expect("add", a.add("ctr", 5), 5);
  expect("add -7", a.add("ctr", -7), -2);
  expect("compare_set new", a.compare_set("cs", "", "new"), "new");
  expect("compare_set match", a.compare_set("cs", "new", "newer"), "newer");
  expect("compare_set mismatch", a.compare_set("cs", "x", "y"), "newer");
  expect("compare_set missing", a.compare_set("cs2", "exp", "des"), "exp");
  expect("check", a.check(Keys{"k1", "ctr"}), true);
  expect("check missing", a.check(Keys{"k1", "no"}), false);
  a.append("ap", "one");
  a.append("ap", "two");
  const std::vector<std::pair<std::string, std::string>> items{{"m1", "a"}, {"m2", "bb"}};
  a.multi_set(items);
  expect("multi_get", a.multi_get(Keys{"m1", "m2", "ap"}, 5s), Keys{"a", "bb", "onetwo"});
  expect("delete_key", a.delete_key("k1"), true);
  expect("delete_key again", a.delete_key("k1"), false);
  const auto keys = a.num_keys();
  expect_timeout("wait", [&] { a.wait(Keys{"never"}, 300ms); });
  expect("in step after the time-out", a.num_keys(), keys);
  std::thread later([&] {
    std::this_thread::sleep_for(100ms);
    b.set("late", "1");
  });
  expect("get that blocks", a.get("late", 10s), "1");
  later.join();
  const std::string large(5 << 20, 'x');
  a.set("large", large);
  expect("a large value", b.get("large"), large);
}

void queues(TcpStore& a, TcpStore& b) {
  a.queue_push("q", "e1");
  a.queue_push("q", "e2");
  expect("queue_length", a.queue_length("q"), 2);
  expect("queue_pop", a.queue_pop("q", 5s), "e1");
  expect("queue_try_pop", b.queue_try_pop("q").value_or("none"), "e2");
  expect("queue_try_pop of nothing", a.queue_try_pop("q").has_value(), false);
  expect_timeout("queue_pop", [&] { a.queue_pop("q", 200ms); });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto port = static_cast<std::uint16_t>(argc > 1 ? std::atoi(argv[1]) : 0);
    const std::set<std::string> kinds(argv + std::min(argc, 2), argv + argc);
    TcpStore a({"127.0.0.1", port, 20s, 1});
    const auto b = a.clone();
    basics(a, *b);
    if (kinds.count("queues")) queues(a, *b);
    if (kinds.count("list")) {
      const auto keys = a.list_keys();
      expect("list_keys", std::count(keys.begin(), keys.end(), "large"), 1);
    }
    if (kinds.count("barrier")) {
      std::thread other([&] { b->barrier("bar", 2, 10s); });
      a.barrier("bar", 2, 10s);
      other.join();
      expect_timeout("barrier", [&] { a.barrier("bar2", 2, 200ms); });
    }
    return 0;
  } catch (const std::exception& error) {
    std::printf("FAILED %s\n", error.what());
    return 1;
  }
}
