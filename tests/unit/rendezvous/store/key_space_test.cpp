#include "rendezvous/store/key_space.hpp"

#include <memory>

#include "tests/catch.hpp"

using namespace dtrun::rendezvous;

namespace {

struct Recorder final : Waiter {
  explicit Recorder(KeySpace& s) : space(s) {}
  ~Recorder() override { space.cancel(*this); }
  void woken() override { ++wakes; }
  KeySpace& space;
  int wakes = 0;
};

bool wait(KeySpace& space, Recorder& waiter, std::vector<std::string_view> keys) { return space.wait(keys, waiter); }

struct Log final : Watcher {
  void changed(char kind, std::string_view key, std::string_view before, std::string_view now) override {
    lines.push_back(std::to_string(int{kind}) + std::string(key) + ":" + std::string(before) + ">" + std::string(now));
  }
  std::vector<std::string> lines;
};

}  // namespace

TEST_CASE("add reads decimal text by the rules of strtoll and wraps") {
  struct Row {
    std::string before;
    std::int64_t delta;
    std::optional<std::int64_t> after;
  };
  const std::vector<Row> rows{{"12abc", 1, 13},
                              {" 7", 1, 8},
                              {"+5", -6, -1},
                              {"-3", 3, 0},
                              {"abc", 1, {}},
                              {"", 1, {}},
                              {"  ", 1, {}},
                              {"+-5", 1, {}},
                              {"9223372036854775807", 1, INT64_MIN},
                              {"0x10", 1, 1},
                              {"99999999999999999999", 1, {}}};
  for (const auto& row : rows) {
    KeySpace space;
    space.set("k", row.before);
    CHECK(space.add("k", row.delta) == row.after);
    CHECK(*space.find("k") == (row.after ? std::to_string(*row.after) : row.before));
  }
  KeySpace empty;
  CHECK(empty.add("new", -4) == -4);
}

TEST_CASE("compare_set answers the value afterwards") {
  KeySpace space;
  CHECK(space.compare_set("k", "exp", "des") == "exp");
  CHECK(space.size() == 0);
  CHECK(space.compare_set("k", "", "new") == "new");
  CHECK(space.compare_set("k", "wrong", "x") == "new");
  CHECK(space.compare_set("k", "", "x") == "new");
  CHECK(space.compare_set("k", "new", "newer") == "newer");
}

TEST_CASE("a waiter wakes once, when the last of its keys has come, by any kind of change") {
  using Change = void (*)(KeySpace&);
  const std::vector<Change> changes{
      [](KeySpace& s) { s.set("b", "1"); }, [](KeySpace& s) { s.add("b", 1); }, [](KeySpace& s) { s.append("b", "1"); },
      [](KeySpace& s) { s.compare_set("b", "", "1"); }, [](KeySpace& s) { s.queue_push("b", "1"); }};
  for (const auto change : changes) {
    KeySpace space;
    Recorder waiter(space);
    space.set("here", "1");
    CHECK_FALSE(wait(space, waiter, {"here", "a", "b"}));
    space.set("a", "1");
    space.set("a", "2");
    CHECK(waiter.wakes == 0);
    change(space);
    CHECK(waiter.wakes == 1);
    CHECK_FALSE(waiter.waiting());
    space.set("b", "again");
    CHECK(waiter.wakes == 1);
    CHECK(wait(space, waiter, {"a", "b"}));
  }
}

TEST_CASE(
    "an arrival counts although the key is deleted before the others come, a key named twice counts twice at once") {
  KeySpace space;
  Recorder waiter(space);
  CHECK_FALSE(wait(space, waiter, {"p", "q"}));
  space.set("p", "");
  CHECK(space.erase("p"));
  space.set("q", "");
  CHECK(waiter.wakes == 1);
  CHECK_FALSE(wait(space, waiter, {"twice", "twice"}));
  space.set("twice", "");
  CHECK(waiter.wakes == 2);
  CHECK(wait(space, waiter, {}));
}

TEST_CASE("cancelled and replaced waits are forgotten") {
  KeySpace space;
  Recorder waiter(space);
  CHECK_FALSE(wait(space, waiter, {"a", "b"}));
  space.cancel(waiter);
  space.set("a", "");
  space.set("b", "");
  CHECK(waiter.wakes == 0);
  CHECK_FALSE(wait(space, waiter, {"c"}));
  CHECK_FALSE(wait(space, waiter, {"d"}));
  space.set("c", "");
  CHECK(waiter.wakes == 0);
  space.set("d", "");
  CHECK(waiter.wakes == 1);
  const auto before = space.stored_bytes();
  CHECK_FALSE(wait(space, waiter, {"e", "f", "g"}));
  CHECK(space.stored_bytes() > before);
  space.cancel(waiter);
  CHECK(space.stored_bytes() == before);
}

TEST_CASE("a thousand waiters of one key all wake, and leaving in any order is safe") {
  KeySpace space;
  std::vector<std::unique_ptr<Recorder>> waiters;
  for (int i = 0; i < 1000; ++i) {
    waiters.push_back(std::make_unique<Recorder>(space));
    wait(space, *waiters.back(), {"k", "other"});
  }
  for (std::size_t i = 0; i < waiters.size(); i += 3) space.cancel(*waiters[i]);
  space.set("k", "");
  space.set("other", "");
  for (std::size_t i = 0; i < waiters.size(); ++i) CHECK(waiters[i]->wakes == (i % 3 == 0 ? 0 : 1));
}

TEST_CASE("a barrier counts arrivals in an ordinary key") {
  KeySpace space;
  Recorder first(space), second(space), plain(space), late(space);
  CHECK_FALSE(wait(space, plain, {"bar"}));
  CHECK(space.barrier("bar", 3, first) == false);
  CHECK(plain.wakes == 1);
  CHECK(wait(space, plain, {"bar"}));
  CHECK(space.barrier("bar", 3, second) == false);
  CHECK(first.wakes == 0);
  CHECK(space.barrier("bar", 3, late) == true);
  CHECK(first.wakes == 1);
  CHECK(second.wakes == 1);
  CHECK(*space.find("bar") == "3");
  CHECK(space.barrier("bar", 3, late) == true);
  CHECK(space.barrier("other", 2, late) == false);
  space.cancel(late);
  CHECK(*space.find("other") == "1");
  space.set("text", "abc");
  CHECK(space.barrier("text", 2, late) == std::nullopt);
}

TEST_CASE("a push wakes one waiter, and an element that the woken one does not take goes to the next") {
  KeySpace space;
  Recorder a(space), b(space);
  wait(space, a, {"q"});
  wait(space, b, {"q"});
  space.queue_push("q", "1");
  CHECK(a.wakes == 1);
  CHECK(b.wakes == 0);
  SECTION("taken") {
    space.settle(a, "q");
    CHECK(space.queue_pop("q") == "1");
    CHECK(b.wakes == 0);
  }
  SECTION("the woken one goes away") {
    space.cancel(a);
    CHECK(b.wakes == 1);
  }
  SECTION("the woken one does something else") {
    space.settle(a, "");
    CHECK(b.wakes == 1);
  }
  CHECK(space.queue_length("none") == 0);
  CHECK(space.queue_pop("none") == std::nullopt);
}

TEST_CASE("queues are a name space of their own") {
  KeySpace space;
  space.queue_push("q", "1");
  space.queue_push("q", "2");
  CHECK(space.size() == 0);
  CHECK(space.exists("q"));
  CHECK_FALSE(space.erase("q"));
  CHECK(space.find("q") == nullptr);
  CHECK(space.queue_length("q") == 2);
  CHECK(space.queue_pop("q") == "1");
  CHECK(space.queue_pop("q") == "2");
  CHECK_FALSE(space.exists("q"));
  CHECK(space.stored_bytes() == 0);
}

TEST_CASE("watchers hear of every change") {
  KeySpace space;
  Log log;
  space.watch("k", log);
  space.watch("k", log);
  CHECK(log.watched() == 1);
  space.set("k", "v1");
  space.set("k", "v22");
  space.append("k", "!");
  space.erase("k");
  space.add("k", 3);
  space.set("else", "");
  CHECK(log.lines == std::vector<std::string>{"1k:>v1", "0k:v1>v22", "0k:v22>v22!", "2k:v22!>", "1k:>3"});
  space.unwatch(log);
  space.set("k", "silent");
  CHECK(log.lines.size() == 5);
}

TEST_CASE("stored bytes go up and down with what is stored") {
  KeySpace space;
  space.set("key", "12345");
  CHECK(space.stored_bytes() == 8 + KeySpace::kOverhead);
  space.set("key", "1");
  CHECK(space.stored_bytes() == 4 + KeySpace::kOverhead);
  space.append("key", "23");
  CHECK(space.stored_bytes() == 6 + KeySpace::kOverhead);
  space.erase("key");
  CHECK(space.stored_bytes() == 0);
}
