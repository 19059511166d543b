// What is in the directory of checkpoints after saves: which ones stay, which is the newest, what is cleaned up.
#include "worker_runtime/checkpoint/checkpoint_directory.hpp"

#include <atomic>
#include <set>
#include <thread>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/checkpoint_state.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"

using namespace dtrun;
using namespace dtrun::test;
using namespace dtrun::runtime;
namespace fs = std::filesystem;

namespace {

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename().string());
  return names;
}
using Names = std::set<std::string>;

void save_and_keep(const fs::path& directory, std::int64_t step, int keep) {
  const auto outcomes =
      save_job(directory, Cut::rows, 2, step, [&](int, auto& options, auto&) { options.keep = keep; });
  REQUIRE(errors_of(outcomes).empty());
  for (const auto& outcome : outcomes) CHECK(outcome.warning.empty());
}

}  // namespace

TEST_CASE("a checkpoint is one file of each rank, an index and what the run wrote down, and latest names it") {
  const tests::TempDirectory directory;
  const auto nested = directory.path() / "a" / "b";
  REQUIRE_NOTHROW(save_well(nested, Cut::rows, 2, 120));
  CHECK(names_in(nested) == Names{"latest", "step_00000120"});
  CHECK(tests::read_file(nested / "latest") == "step_00000120\n");
  CHECK(names_in(nested / "step_00000120") ==
        Names{"index.json", "meta.json", "rank_00000.safetensors", "rank_00001.safetensors"});
  const SafetensorsReader file((nested / "step_00000120" / "rank_00001.safetensors").string());
  CHECK(file.contains("wte@8192"));
  CHECK(file.metadata().at("step") == "120");
  const auto choice = choose_job(nested, 3);
  CHECK(choice.path == nested / "step_00000120");
  CHECK(choice.meta.step == 120);
  CHECK(choice.meta.run == R"({"seed":7,"a":[1,2]})");
  CHECK(choice.world == 2);
  CHECK(choice.passed_over.empty());
}

TEST_CASE("a directory that is missing or empty has no checkpoint") {
  const tests::TempDirectory directory;
  CHECK_FALSE(choose_job(directory.path() / "none", 2).path);
  CHECK_FALSE(choose_job(directory.path(), 2).path);
  directory.write("step_00000001/notes.txt", "a user's");
  directory.write("step_1/meta.json", "no name of ours");
  directory.write("file", "");
  const auto choice = choose_job(directory.path(), 2);
  CHECK_FALSE(choice.path);
  REQUIRE(choice.passed_over.size() == 1);
  CHECK_THAT(choice.passed_over[0], Catch::StartsWith("step_00000001: meta.json: open"));
}

TEST_CASE("the newest checkpoints are kept, and a number of 0 keeps all") {
  const tests::TempDirectory directory;
  for (const int step : {1, 2, 3}) save_and_keep(directory.path(), step, 0);
  CHECK(names_in(directory.path()) == Names{"latest", "step_00000001", "step_00000002", "step_00000003"});
  // Older than those that are kept, and broken: it goes too. What is not ours stays.
  fs::remove(directory.path() / "step_00000001" / "rank_00001.safetensors");
  directory.write("step_00000000/notes.txt", "a user's");
  directory.write("mine.txt", "");
  save_and_keep(directory.path(), 4, 2);
  CHECK(names_in(directory.path()) == Names{"latest", "mine.txt", "step_00000000", "step_00000003", "step_00000004"});
  // One with a file missing does not count.
  fs::remove(directory.path() / "step_00000004" / "rank_00001.safetensors");
  save_and_keep(directory.path(), 5, 2);
  CHECK(names_in(directory.path()) ==
        Names{"latest", "mine.txt", "step_00000000", "step_00000003", "step_00000004", "step_00000005"});
}

TEST_CASE("the newest is the one saved last, also when the run went back") {
  const tests::TempDirectory directory;
  for (const int step : {100, 200, 150}) save_and_keep(directory.path(), step, 0);
  CHECK(choose_job(directory.path(), 2).meta.step == 150);
  save_and_keep(directory.path(), 160, 2);
  CHECK(names_in(directory.path()) == Names{"latest", "step_00000150", "step_00000160"});
}

TEST_CASE("a step that is saved again replaces the older one") {
  const tests::TempDirectory directory;
  REQUIRE_NOTHROW(save_well(directory.path(), Cut::rows, 3, 7));
  const auto outcomes =
      save_job(directory.path(), Cut::columns, 2, 7, [](int, auto&, auto& pieces) { fill(pieces, 9); });
  REQUIRE(errors_of(outcomes).empty());
  CHECK(names_in(directory.path()) == Names{"latest", "step_00000007"});
  CHECK_FALSE(fs::exists(directory.path() / "step_00000007" / "rank_00002.safetensors"));
  const auto pieces = cut_state(Cut::replicated, 0, 1);
  load_checkpoint(*choose_job(directory.path(), 1).path, pieces);
  CHECK_NOTHROW(expect_filled(pieces, 9));
}

TEST_CASE("while a step is saved again and again, a checkpoint of it is there at every moment") {
  const tests::TempDirectory directory;
  CheckpointWriter writer({.directory = directory.path(), .asynchronous = false});
  const auto pieces = cut_state(Cut::rows, 0, 1);
  writer.save({.step = 7}, pieces);
  std::atomic<bool> over = false;
  std::int64_t absent = 0;
  std::thread watcher([&] {
    while (!over) absent += fs::exists(directory.path() / "step_00000007") ? 0 : 1;
  });
  for (int round = 0; round < 30; ++round) writer.save({.step = 7}, pieces);
  over = true;
  watcher.join();
  CHECK(absent == 0);
  for (const auto& outcome : writer.poll()) CHECK(outcome.error.empty());
}

TEST_CASE("where names cannot be exchanged, a crash between the two renames loses nothing") {
  const tests::TempDirectory directory;
  const auto place = directory.path() / "step_00000007", saving = directory.path() / ".saving_00000007_word";
  REQUIRE_NOTHROW(save_well(directory.path(), Cut::rows, 1, 7));
  fs::copy(place, saving, fs::copy_options::recursive);
  const auto old = put_in_place(saving, place, Exchange::no);
  REQUIRE(old);
  CHECK(names_in(directory.path()) == Names{".replaced_00000007_word", "latest", "step_00000007"});
  CHECK(choose_job(directory.path(), 1).path == place);
  fs::rename(place, saving);  // as it is in the middle
  const auto choice = choose_job(directory.path(), 2);
  CHECK(choice.path == *old);
  CHECK(choice.meta.step == 7);
  CHECK(remove_leftovers(directory.path()).empty());
  CHECK(names_in(directory.path()) == Names{"latest", "step_00000007"});
  fs::copy(place, saving, fs::copy_options::recursive);
  REQUIRE(put_in_place(saving, place, Exchange::no));
  CHECK(remove_leftovers(directory.path()).empty());
  CHECK(names_in(directory.path()) == Names{"latest", "step_00000007"});
}

TEST_CASE("what broken saves left goes at the start of rank 0, and nothing else does") {
  const tests::TempDirectory directory;
  REQUIRE_NOTHROW(save_well(directory.path(), Cut::rows, 1, 7));
  directory.write(".saving_00000008_word/rank_00000.safetensors", "half");
  directory.write(".deleting_step_00000001/meta.json", "half");
  directory.write(".mine/file", "");
  const auto before = names_in(directory.path());
  const auto store = std::make_shared<rendezvous::HashStore>();
  { CheckpointWriter other({.directory = directory.path(), .rank = 1, .world = 2, .store = store}); }
  CHECK(names_in(directory.path()) == before);
  { CheckpointWriter first({.directory = directory.path(), .rank = 0, .world = 2, .store = store}); }
  CHECK(names_in(directory.path()) == Names{".mine", "latest", "step_00000007"});
}

TEST_CASE("many saves with the same ranks leave nothing in the store") {
  const tests::TempDirectory directory;
  const auto store = std::make_shared<rendezvous::HashStore>();
  run_job(3, [&](ProcessGroup& group) {
    CheckpointWriter writer({.directory = directory.path(), .rank = group.rank(), .world = 3, .store = store});
    const auto pieces = cut_state(Cut::anywhere, group.rank(), 3);
    std::size_t told = 0;
    for (int step = 1; step <= 10; ++step) {
      fill(pieces, step);
      writer.save({.step = step}, pieces);
      for (const auto& outcome : writer.poll()) told += outcome.error.empty() ? 1 : 0;
    }
    for (const auto& outcome : writer.wait()) told += outcome.error.empty() ? 1 : 0;
    expect(told == 10 && writer.poll().empty() && !writer.saving(), "each save told once");
  });
  CHECK(store->num_keys() == 0);
  CHECK(choose_job(directory.path(), 2).meta.step == 10);
  CHECK(names_in(directory.path()) == Names{"latest", "step_00000009", "step_00000010"});
}

TEST_CASE("a path that the user names is a checkpoint or a directory of them, or the error says what it is") {
  const tests::TempDirectory directory;
  for (const int step : {7, 9}) REQUIRE_NOTHROW(save_well(directory.path() / "run", Cut::rows, 2, step));
  fs::copy(directory.path() / "run" / "step_00000007", directory.path() / "best", fs::copy_options::recursive);
  const auto open = [&](const std::string& name) {
    std::vector<std::string> texts(2);
    run_job(2, [&](ProcessGroup& group) {
      auto& text = texts[static_cast<std::size_t>(group.rank())];
      try {
        const auto choice = open_checkpoint(directory.path() / name, group);
        text = std::to_string(choice.meta.step) + " " + fs::relative(*choice.path, directory.path()).string();
      } catch (const UsageError& error) {
        text = error.what();
      }
    });
    CHECK(texts[0] == texts[1]);
    return texts[0];
  };
  CHECK(open("run") == "9 run/step_00000009");
  CHECK(open("run/step_00000007") == "7 run/step_00000007");
  CHECK(open("best") == "7 best");
  directory.write("file", "");
  fs::create_directory(directory.path() / "empty");
  CHECK_THAT(open("none"), Catch::Contains("is not there"));
  CHECK_THAT(open("file"), Catch::Contains("is no directory"));
  CHECK_THAT(open("empty"), Catch::Contains("holds no checkpoint"));
  fs::remove(directory.path() / "best" / "rank_00001.safetensors");
  CHECK_THAT(open("best"), Catch::Contains("is no good checkpoint: rank_00001.safetensors: open"));
  fs::resize_file(directory.path() / "run" / "step_00000009" / "rank_00000.safetensors", 100);
  CHECK(open("run") == "7 run/step_00000007");
  fs::remove(directory.path() / "run" / "step_00000007" / "index.json");
  CHECK_THAT(open("run"), Catch::Contains("holds no good checkpoint: step_00000009: rank_00000") &&
                              Catch::Contains("; step_00000007: index.json"));
}
