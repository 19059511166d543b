// The same rules through HashStore, PrefixStore and FileStore.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "rendezvous/base/error.hpp"
#include "rendezvous/store/file_store.hpp"
#include "rendezvous/store/hash_store.hpp"
#include "rendezvous/store/prefix_store.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"

using namespace dtrun;
using namespace dtrun::rendezvous;
using namespace std::chrono_literals;

namespace {

using Keys = std::vector<std::string>;

void check_all_operations(Store& store) {
  store.set("k", "v");
  CHECK(store.get("k") == "v");
  CHECK(store.add("n", 5) == 5);
  CHECK(store.add("n", -7) == -2);
  CHECK_THROWS_AS(store.add("k", 1), RendezvousError);
  CHECK(store.compare_set("c", "x", "y") == "x");
  CHECK(store.compare_set("c", "", "y") == "y");
  CHECK(store.compare_set("c", "y", "z") == "z");
  CHECK(store.compare_set("c", "bad", "q") == "z");
  store.append("a", "1");
  store.append("a", "2");
  const std::vector<std::pair<std::string, std::string>> items{{"m1", "a"}, {"m2", std::string("\0b", 2)}};
  store.multi_set(items);
  CHECK(store.multi_get(Keys{"m2", "m1", "a"}, 1s) == Keys{std::string("\0b", 2), "a", "12"});
  CHECK(store.check(Keys{"k", "a"}));
  CHECK_FALSE(store.check(Keys{"k", "nope"}));
  store.queue_push("q", "e1");
  store.queue_push("q", "e2");
  CHECK(store.queue_length("q") == 2);
  CHECK(store.queue_pop("q", 1s) == "e1");
  CHECK(store.queue_pop("q", 1s) == "e2");
  CHECK_THROWS_AS(store.queue_pop("q", 20ms), TimeoutError);
  auto keys = store.list_keys();
  std::sort(keys.begin(), keys.end());
  CHECK(keys == Keys{"a", "c", "k", "m1", "m2", "n"});
  CHECK(store.delete_key("k"));
  CHECK_FALSE(store.delete_key("k"));
  CHECK_THROWS_WITH(store.get("k", 20ms), Catch::Contains("\"") && Catch::Contains("k"));
  CHECK_THROWS_AS(store.wait(Keys{"n", "x"}, 20ms), TimeoutError);
  store.barrier("one", 1, 1s);
  CHECK_THROWS_AS(store.barrier("two", 2, 20ms), TimeoutError);
}

// Eight threads: counters add up, a value that another thread writes wakes the reader, all meet at a barrier.
void check_threads(const std::function<std::shared_ptr<Store>()>& open) {
  constexpr int kThreads = 8, kRounds = 25;
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kThreads; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto store = open();
        for (int round = 0; round < kRounds; ++round) store->add("count", 1);
        store->set("of" + std::to_string(rank), std::to_string(rank));
        const auto peer = std::to_string((rank + 1) % kThreads);
        if (store->get("of" + peer, 20s) != peer) ++failures;
        store->barrier("meet", kThreads, 20s);
        if (store->get("count") != std::to_string(kThreads * kRounds)) ++failures;
        if (rank == 0) {
          for (int i = 1; i < kThreads; ++i) store->queue_push("work", "item");
        } else if (store->queue_pop("work", 20s) != "item") {
          ++failures;
        }
      } catch (const std::exception&) {
        ++failures;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failures == 0);
}

}  // namespace

TEST_CASE("HashStore has every operation and is thread-safe") {
  HashStore store;
  check_all_operations(store);
  CHECK(store.num_keys() == 7);
  const auto shared = std::make_shared<HashStore>();
  check_threads([&] { return shared; });
}

TEST_CASE("PrefixStore has every operation, shows only its own keys and nests outermost first") {
  const auto root = std::make_shared<HashStore>();
  root->set("elsewhere", "");
  root->set_timeout(1234ms);
  PrefixStore store("p", root);
  CHECK(store.timeout() == 1234ms);
  check_all_operations(store);
  CHECK(root->check(Keys{"p/n", "p/m1"}));
  PrefixStore outer("outer", std::make_shared<PrefixStore>("inner", root));
  outer.set("pk", "pv");
  CHECK(root->get("inner/outer/pk") == "pv");
  PrefixStore slash("/w/", root);
  slash.set("k", "1");
  CHECK(root->check(Keys{"/w//k"}));
}

TEST_CASE("FileStore has every operation and joins threads and instances") {
  const tests::TempDirectory directory;
  FileStore store(directory.path() / "one", -1);
  check_all_operations(store);
  CHECK(store.num_keys() == 7);
  check_threads([&] { return std::make_shared<FileStore>(directory.path() / "two", 8); });
  CHECK_FALSE(std::filesystem::exists(directory.path() / "two"));
  CHECK(std::filesystem::exists(directory.path() / "one"));
}

TEST_CASE("FileStore cuts off what a dying writer left half written") {
  const tests::TempDirectory directory;
  const auto path = directory.path() / "store";
  FileStore store(path, -1);
  store.set("k", "v");
  {
    std::ofstream torn(path, std::ios::app | std::ios::binary);
    torn << "s\x05";
  }
  CHECK(store.get("k") == "v");
  store.set("after", "1");
  FileStore again(path, -1);
  CHECK(again.get("after") == "1");
  CHECK(again.num_keys() == 2);
}

TEST_CASE("FileStore says when a file is none of its own") {
  const tests::TempDirectory directory;
  std::ofstream(directory.path() / "text") << "this is some other file, a long one";
  CHECK_THROWS_WITH(FileStore(directory.path() / "text", -1), Catch::Contains("not a store file"));
  CHECK_THROWS_AS(FileStore(directory.path() / "no" / "such" / "place", -1), SystemError);
}
