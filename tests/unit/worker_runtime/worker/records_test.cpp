// What the worker writes for people and programs: error file, step log, progress.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "worker_runtime/worker/error_file.hpp"
#include "worker_runtime/worker/progress.hpp"
#include "worker_runtime/worker/step_log.hpp"

using namespace dtrun::runtime;
using Catch::Contains;
namespace fs = std::filesystem;

TEST_CASE("the error file has the form of torch's @record") {
  const dtrun::tests::TempDirectory dir;
  const auto path = dir.path() / "error.json";
  REQUIRE(write_error_file(path.string(), dtrun::CommError("comm", "rank 2 is gone \xff \xc3\xa4")));
  const auto text = dtrun::tests::read_file(path);
  CHECK(std::ranges::all_of(text, [](unsigned char c) { return c >= ' ' && c < 127; }));
  const auto json = nlohmann::json::parse(text);
  CHECK_THAT(json["message"]["message"].get<std::string>(), Catch::StartsWith("CommError: [comm] rank 2 is gone"));
  CHECK_THAT(json["message"]["extraInfo"]["py_callstack"].get<std::string>(), Contains("rank 2"));
  CHECK(std::stoll(json["message"]["extraInfo"]["timestamp"].get<std::string>()) > 1'700'000'000);
  CHECK(dir.entries() == 1);
  CHECK_FALSE(write_error_file((dir.path() / "no" / "such").string(), dtrun::Error("a", "b")));
}

TEST_CASE("the error file names the rank that was waited for before the one that waited") {
  const auto message = [](const std::string& text) {
    const auto document = nlohmann::json::parse(error_document(dtrun::CommError("comm", text), 0));
    const auto message_text = document["message"]["message"].get<std::string>();
    // The launcher shows this one when it has several lines.
    CHECK("CommError: " + document["message"]["extraInfo"]["py_callstack"].get<std::string>() == message_text);
    return message_text;
  };
  CHECK_THAT(message("group \"dp\": rank 0 waited 3 s in number 4; missing:\n  rank 12 (pid 9), its last operation: x"),
             Catch::StartsWith("CommError: rank 12 is missing: [comm] group"));
  const auto json = nlohmann::json::parse(error_document(dtrun::CommError("comm", "missing: rank 12 (pid 9)"), 0));
  CHECK(json["message"]["extraInfo"]["blames_rank"] == 12);
  const auto left = nlohmann::json::parse(error_document(
      dtrun::CommError("comm",
                       "group \"world/pp\": rank 3 (pid 9) left the group; its last operation: number 2; rank 1 "
                       "waited for it in number 3"),
      5));
  CHECK(left["message"]["extraInfo"]["blames_rank"] == 3);
  CHECK_THAT(left["message"]["message"].get<std::string>(), !Catch::Contains("missing"));
  CHECK_THAT(message("rank 1 (pid 7) died"), Catch::StartsWith("CommError: [comm] rank 1"));
  CHECK_THAT(message("missing: nothing"), Catch::StartsWith("CommError: [comm] missing: nothing"));
}

TEST_CASE("the error file says when another attempt cannot help") {
  const auto extra = [](const std::exception& error) {
    return nlohmann::json::parse(error_document(error, 0))["message"]["extraInfo"];
  };
  CHECK(extra(dtrun::UsageError("worker", "unknown option"))["retry"] == false);
  CHECK_FALSE(extra(dtrun::CommError("comm", "rank 1 left")).contains("retry"));
}

TEST_CASE("every kind of error has its name") {
  CHECK(error_kind(dtrun::UsageError("a", "b")) == "UsageError");
  CHECK(error_kind(dtrun::TimeoutError("a", "b")) == "TimeoutError");
  CHECK(error_kind(dtrun::RendezvousError("a", "b")) == "RendezvousError");
  CHECK(error_kind(dtrun::Error("a", "b")) == "Error");
  CHECK(error_kind(std::bad_alloc()) == "OutOfMemory");
  CHECK(error_kind(MemoryError("a", "b")) == "OutOfMemory");
}

TEST_CASE("the step log has one whole line per step") {
  const dtrun::tests::TempDirectory dir;
  WorkerEnvironment environment;
  environment.rank = 3;
  const auto directory = make_log_directory(environment, dir.path().string());
  CHECK(directory == dir.path() / "3");
  StepLog log(directory);
  for (int step = 0; step < 3; ++step) {
    StepRecord record;
    record.step = step;
    record.result.loss = 1.5;
    record.result.comm = std::chrono::milliseconds(2);
    record.result.bytes_sent = {{"dp", 77}};
    record.last_collective = "REDUCE metrics";
    record.peak_bytes[static_cast<std::size_t>(MemoryTag::param)] = 128;
    record.predicted_peak_bytes = record.peak_bytes;
    log.write(record);
  }
  std::ifstream file(log.path());
  std::string line;
  int lines = 0;
  while (std::getline(file, line)) {
    const auto json = nlohmann::json::parse(line);
    CHECK(json["step"] == lines + 1);
    CHECK(json["loss"] == 1.5);
    CHECK(json["milliseconds"]["comm_exposed"] == 2.0);
    CHECK(json["bytes_sent"]["dp"] == 77);
    CHECK(json["peak_bytes"]["param"] == 128);
    CHECK(json["predicted_peak_bytes"] == json["peak_bytes"]);
    CHECK(json["last_collective"] == "REDUCE metrics");
    ++lines;
  }
  CHECK(lines == 3);
  const auto lines_now = [&] { return std::ranges::count(dtrun::tests::read_file(log.path()), '\n'); };
  StepLog again(directory);
  again.write({});
  CHECK(lines_now() == 4);
  again.start_anew();
  again.write({});
  CHECK(lines_now() == 1);
}

TEST_CASE("a full disk costs lines of the step log, not the run") {
  const dtrun::tests::TempDirectory dir;
  if (!fs::is_character_file("/dev/full")) {
    WARN("no /dev/full here");
    return;
  }
  fs::create_symlink("/dev/full", dir.path() / "steps.jsonl");
  StepLog log(dir.path());
  for (int step = 0; step < 3; ++step) CHECK_NOTHROW(log.write({}));
  CHECK(log.lost_lines() == 3);
  CHECK(fs::is_character_file("/dev/full"));
}

TEST_CASE("the log directory: chosen, the launcher's, beside the error file, temporary") {
  const dtrun::tests::TempDirectory dir;
  WorkerEnvironment environment;
  environment.rank = 1;
  const auto temporary = make_log_directory(environment, "");
  CHECK(fs::is_directory(temporary));
  fs::remove(temporary);
  environment.error_file = (dir.path() / "e" / "error.json").string();
  CHECK(make_log_directory(environment, "") == dir.path() / "e");
  environment.log_directory = (dir.path() / "logs").string();
  CHECK(make_log_directory(environment, "") == dir.path() / "logs" / "1");
  CHECK(make_log_directory(environment, (dir.path() / "mine").string()) == dir.path() / "mine" / "1");
  std::ofstream(dir.path() / "file") << "x";
  CHECK_THROWS_WITH(make_log_directory(environment, (dir.path() / "file").string()),
                    Contains("log directory") && Contains("file"));
}

TEST_CASE("progress shows what is done and how long it will take") {
  const ProgressPoint point{30, 3.25, 0.5, 1e-3, 12345.6};
  CHECK(progress_line(point, 120, std::chrono::seconds(10)) ==
        "step  30/120  loss 3.2500  grad norm 0.5  lr 1.00e-03  12346 tokens/s  30 s left");
  CHECK(progress_bar(point, 120, std::chrono::seconds(10)) ==
        "[#######                       ]  30/120  loss 3.2500  12346 tokens/s  30 s left");
  CHECK_THAT(progress_bar({120, 1, 1, 1, 1}, 120, std::chrono::seconds(1)),
             Contains("[##############################] 120/120") && !Contains("left"));
}
