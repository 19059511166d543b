#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "rendezvous/contract/error_document.hpp"
#include "rendezvous/contract/flight_record.hpp"
#include "rendezvous/contract/progress_file.hpp"
#include "rendezvous/contract/snapshot_memory.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"

using namespace dtrun;
using dtrun::tests::read_file;
using dtrun::tests::TempDirectory;

TEST_CASE("the progress file has one width, whatever is told, and the steps in its first line") {
  const TempDirectory directory;
  const auto path = directory.file("progress");
  CHECK_FALSE(read_progress(path));
  ProgressWriter writer(path);
  CHECK_FALSE(read_progress(path));  // nothing told yet
  writer.finished_steps(1);
  const auto size = read_file(path).size();
  for (const std::int64_t count :
       {std::int64_t{0}, std::int64_t{123456}, std::numeric_limits<std::int64_t>::max(), std::int64_t{5}}) {
    writer.finished_steps(count);
    CHECK(read_progress(path) == count);
    CHECK(read_file(path).size() == size);
    CHECK(read_file(path).find('\n') == 20);
  }
}

TEST_CASE("a worker tells its phases beside its steps, and what it did not come to is not there") {
  const TempDirectory directory;
  const auto path = directory.file("progress");
  const auto start = Clock::now();
  CHECK_FALSE(read_whole_progress(path).told);
  ProgressWriter writer(path);
  CHECK_FALSE(read_whole_progress(path).told);
  writer.set_up();
  auto told = read_whole_progress(path);
  CHECK(told.told);
  CHECK(told.steps == -1);
  CHECK_FALSE(read_progress(path));
  REQUIRE(told.set_up);
  CHECK(*told.set_up >= start);
  CHECK_FALSE((told.began_at || told.loaded || told.first_step));
  writer.loaded(120);
  told = read_whole_progress(path);
  CHECK(told.steps == 120);
  CHECK(told.began_at == 120);
  CHECK(read_progress(path) == 120);
  REQUIRE(told.loaded);
  CHECK(*told.loaded >= *told.set_up);
  CHECK_FALSE(told.first_step);
  writer.finished_steps(121);
  const auto first = read_whole_progress(path).first_step;
  writer.finished_steps(122);
  told = read_whole_progress(path);
  CHECK(told.steps == 122);
  CHECK(told.began_at == 120);
  REQUIRE(first);
  CHECK(told.first_step == first);
  CHECK(*first <= Clock::now());
}

TEST_CASE("of a program that tells its steps only, or something else beside them, the steps are read") {
  const TempDirectory directory;
  for (const auto* text : {"7\n", "  7\nbegan 3", "7\nbegan 1 set-up 2 loaded 3 first-step x\n",
                           "7\nbegan 1 set-up 2 loaded 3 first-step 4 5\n"}) {
    directory.write("progress", text);
    const auto told = read_whole_progress(directory.file("progress"));
    CHECK(told.steps == 7);
    CHECK_FALSE((told.began_at || told.set_up || told.loaded || told.first_step));
  }
}

TEST_CASE("who tells no progress, or cannot, goes on") {
  ProgressWriter nowhere(std::nullopt), empty(std::string{}), missing(std::string("/no/such/directory/progress"));
  for (auto* writer : {&nowhere, &empty, &missing}) writer->finished_steps(1);
  CHECK_FALSE(read_progress(""));
  CHECK_FALSE(read_progress("/no/such/directory/progress"));
}

TEST_CASE("a progress file is a number and a line end, anything else is no progress") {
  const TempDirectory directory;
  for (const auto* good : {"7\n", "  7\n", "7", "7\nmore"}) {
    directory.write("progress", good);
    CHECK(read_progress(directory.file("progress")) == 7);
  }
  for (const auto* bad : {"", "\n", " ", "x", "-1\n", "7 8\n", "7x\n", "0x7\n", "99999999999999999999\n"}) {
    CAPTURE(bad);
    directory.write("progress", bad);
    CHECK_FALSE(read_progress(directory.file("progress")));
  }
}

TEST_CASE("an error document has torch's form, in ASCII on one line") {
  const auto text = to_json({"E", "a\nb \xff", 17, 3});
  CHECK(text.find('\n') == std::string::npos);
  const auto document = nlohmann::json::parse(text);
  CHECK(document["message"]["message"].get<std::string>().starts_with("E: a\nb "));
  CHECK(document["message"]["extraInfo"]["timestamp"] == "17");
  CHECK(document["message"]["extraInfo"]["blames_rank"] == 3);
  CHECK_FALSE(nlohmann::json::parse(to_json({"E", "a", 17, {}}))["message"]["extraInfo"].contains("blames_rank"));
}

namespace {

FlightEntry entry_of(std::uint64_t count) {
  FlightEntry entry;
  entry.count = count;
  entry.sequence = count;
  entry.ranks = 4;
  set_text(entry.op, "all_reduce");
  set_text(entry.dtype, "f32");
  set_text(entry.group, "dp");
  set_text(entry.action, "step 3, REDUCE blocks.1");
  return entry;
}

}  // namespace

TEST_CASE("a flight record tells the last collectives, and which of them had not ended") {
  const TempDirectory directory;
  const auto path = directory.file("flight");
  CHECK_FALSE(read_flight_record(path));
  FlightRecorder recorder(path, 7);
  REQUIRE(read_flight_record(path));
  CHECK(read_flight_record(path)->telling() == nullptr);
  std::uint64_t open = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const auto number = recorder.called(entry_of(i));
    CHECK(number == i + 1);
    if (i == 900) {
      open = number;
    } else {
      recorder.finished(number);
    }
  }
  const auto record = read_flight_record(path);
  REQUIRE(record);
  CHECK(record->rank == 7);
  REQUIRE(record->entries.size() == kFlightCapacity);
  CHECK(record->entries.front().number == 1001 - kFlightCapacity);
  CHECK(record->entries.back().number == 1000);
  REQUIRE(record->telling() != nullptr);
  CHECK(record->telling()->number == open);
  CHECK(describe(*record->telling()) ==
        "all_reduce of 900 f32 in group dp (4 ranks, call 900), step 3, REDUCE blocks.1");
  recorder.finished(open);
  recorder.finished(1);  // long overwritten
  CHECK(read_flight_record(path)->telling()->number == 1000);
  CHECK(read_flight_record(path)->entries.front().finished > 0);
}

TEST_CASE("a flight record is there after kill -9, and training needs none") {
  const TempDirectory directory;
  const auto path = directory.file("flight");
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    FlightRecorder recorder(path, 1);
    recorder.called(entry_of(5));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(read_flight_record(path));
  CHECK(read_flight_record(path)->telling()->count == 5);
  for (const auto& nowhere : {std::optional<std::string>(), std::optional<std::string>("/no/such/directory/flight")}) {
    FlightRecorder recorder(nowhere, 0);
    recorder.finished(recorder.called(entry_of(1)));
  }
}

TEST_CASE("what is no flight record is not read as one, and texts end inside their fields") {
  const TempDirectory directory;
  const auto path = directory.file("flight");
  for (const auto& bad : {std::string(), std::string("DTRUNFLT"), std::string(kFlightRecordBytes, 'x')}) {
    directory.write("flight", bad);
    CHECK_FALSE(read_flight_record(path));
  }
  FlightRecorder recorder(path, 0);
  FlightEntry entry = entry_of(1);
  set_text(entry.group, std::string(100, 'g'));
  entry.ranks = 1;
  recorder.called(entry);
  CHECK(describe(*read_flight_record(path)->telling()).find(std::string(23, 'g') + " (1 rank, call ") !=
        std::string::npos);
  std::string bytes = read_file(path);
  for (std::size_t i = kFlightHeader + sizeof(FlightEntry) + 8; i < kFlightHeader + 2 * sizeof(FlightEntry); ++i)
    bytes[i] = 'a';  // no zero anywhere
  directory.write("flight", bytes);
  REQUIRE(read_flight_record(path));
  CHECK(describe(read_flight_record(path)->entries.at(0)).size() < 300);
}

TEST_CASE("snapshot memory is taken when the variable names it, and is then not inherited any further") {
  const int fd = ::memfd_create((std::string(kSnapshotMemoryName) + "3").c_str(), 0);
  REQUIRE(fd >= 0);
  const auto number = std::to_string(fd);
  for (const auto& bad :
       {std::string(), " " + number, number + "x", "-" + number, std::string("99999999999"), std::string("0")})
    CHECK_FALSE(take_snapshot_memory(bad));
  CHECK_FALSE(take_snapshot_memory(std::nullopt));
  CHECK(::fcntl(fd, F_GETFD) == 0);
  {
    const auto memory = take_snapshot_memory(number);
    CHECK(memory.value() == fd);
    CHECK(::fcntl(fd, F_GETFD) == FD_CLOEXEC);
  }
  CHECK_FALSE(take_snapshot_memory(number));  // closed
}

TEST_CASE("a descriptor that something else got is no snapshot memory, and stays open") {
  const TempDirectory directory;
  const UniqueFd file(::open(directory.file("dtrun-snapshot-0").c_str(), O_RDWR | O_CREAT, 0600));
  const UniqueFd other(::memfd_create("other", 0));
  for (const auto* mine : {&file, &other}) {
    CHECK_FALSE(take_snapshot_memory(std::to_string(mine->value())));
    CHECK(::fcntl(mine->value(), F_GETFD) == 0);
  }
}
