// What dtrun tells programs: --events, --report, and its own error file, for every way in which a job can end.
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/integration/launcher/agent/shell_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// The schema of launcher/README.md: the fields of each event beside those that all have. A final ? means: or null.
const std::map<std::string, std::map<std::string, std::string>> kEvents = {
    {"start",
     {{"version", "text"},
      {"host", "text"},
      {"pid", "int"},
      {"program", "text"},
      {"nodes", "int"},
      {"workers", "int"},
      {"max_restarts", "int"}}},
    {"rendezvous", {{"attempt", "int"}, {"nodes", "int"}, {"master_addr", "text"}, {"master_port", "int"}}},
    {"assignment",
     {{"attempt", "int"},
      {"restarts", "int"},
      {"node_rank", "int"},
      {"first_rank", "int"},
      {"local_ranks", "int"},
      {"world_size", "int"}}},
    {"worker_started", {{"attempt", "int"}, {"rank", "int"}, {"local_rank", "int"}, {"pid", "int"}}},
    {"worker_ended",
     {{"attempt", "int"},
      {"rank", "int"},
      {"local_rank", "int"},
      {"pid", "int"},
      {"exit_code", "int?"},
      {"signal", "text?"},
      {"core_dumped", "bool"},
      {"out_of_memory", "bool"},
      {"stopped_by_launcher", "bool"}}},
    {"stop", {{"attempt", "int"}, {"reason", "text"}, {"signal", "text"}}},
    {"restart", {{"attempt", "int"}}},
    {"signal", {{"signal", "text"}}},
    {"verdict",
     {{"outcome", "text"}, {"exit_code", "int"}, {"restarts", "int"}, {"root_cause", "object?"}, {"error", "text"}}},
};

bool has_type(const json& value, std::string type) {
  if (type.ends_with("?")) {
    if (value.is_null()) return true;
    type.pop_back();
  }
  return type == "int"    ? value.is_number_integer()
         : type == "text" ? value.is_string()
         : type == "bool" ? value.is_boolean()
                          : value.is_object();
}

// Checks every line, and returns the events.
std::vector<json> checked_events(const std::string& path) {
  std::vector<json> events;
  double before = 0;
  for (const auto& line : lines_of(read_file(path))) {
    CAPTURE(line);
    const auto event = json::parse(line);
    CHECK(event.at("schema") == 1);
    CHECK(event.at("sequence") == events.size());
    CHECK(event.at("time").get<double>() > 1.7e9);
    CHECK(event.at("monotonic").get<double>() >= before);
    CHECK(event.at("run_id").is_string());
    before = event.at("monotonic").get<double>();
    const auto known = kEvents.find(event.at("event").get<std::string>());
    REQUIRE(known != kEvents.end());
    for (const auto& [name, type] : known->second) {
      INFO(name);
      REQUIRE(event.contains(name));
      CHECK(has_type(event.at(name), type));
    }
    CHECK(event.size() == known->second.size() + 6);
    events.push_back(event);
  }
  const auto verdicts =
      std::count_if(events.begin(), events.end(), [](const json& event) { return event.at("event") == "verdict"; });
  CHECK(verdicts == 1);
  REQUIRE_FALSE(events.empty());
  CHECK(events.back().at("event") == "verdict");
  return events;
}

std::map<std::string, int> counts(const std::vector<json>& events) {
  std::map<std::string, int> result;
  for (const auto& event : events) ++result[event.at("event").get<std::string>()];
  return result;
}

struct Told {
  int code = -1;
  std::vector<json> events;
  json report;
  json error_file;  // null: none
  std::string text;
};

// Runs dtrun with everything that it can tell written down.
Told run_and_read(Words words, const std::string& variable = "DTRUN_UNUSED=") {
  const TempDirectory directory;
  words.insert(words.begin(), {"--events", directory.file("events"), "--report", directory.file("report")});
  JobOptions options;
  options.environment = {"TORCHELASTIC_ERROR_FILE=" + directory.file("own.json"), variable};
  const auto outcome = run(words, options);
  Told told{outcome.code, checked_events(directory.file("events")), json::parse(read_file(directory.file("report"))),
            nullptr, outcome.error};
  if (fs::exists(directory.file("own.json"))) told.error_file = json::parse(read_file(directory.file("own.json")));
  CHECK(told.report.at("exit_code") == told.code);
  CHECK(told.events.back().at("exit_code") == told.code);
  CHECK(told.report.at("outcome") == told.events.back().at("outcome"));
  CHECK(told.report.at("schema") == 1);
  return told;
}

}  // namespace

TEST_CASE("the event log tells the story once, with one verdict at the end") {
  const auto told = run_and_read(
      shell({"--nproc-per-node=2", "--max-restarts=1"}, "if [ $RANK = 1 ]; then exit 4; fi; exec sleep 60"));
  CHECK(told.code == 4);
  const auto count = counts(told.events);
  CHECK(count == std::map<std::string, int>{{"start", 1},
                                            {"rendezvous", 2},
                                            {"assignment", 2},
                                            {"worker_started", 4},
                                            {"worker_ended", 4},
                                            {"stop", 2},
                                            {"restart", 1},
                                            {"verdict", 1}});
  const auto& root = told.events.back().at("root_cause");
  CHECK(root.at("rank") == 1);
  CHECK(root.at("exit_code") == 4);
  CHECK(root.at("attempt") == 1);
}

TEST_CASE("a signal is an event, and the verdict says that it stopped the job") {
  const TempDirectory directory;
  Job job({DTRUN_PROGRAM, "--nproc-per-node=2", "--events", directory.file("events"), "--report",
           directory.file("report"), "--no-python", "/bin/sh", "-c", "echo ready; exec sleep 60"},
          {.environment = {"TORCHELASTIC_ERROR_FILE=" + directory.file("own.json")}});
  REQUIRE(eventually([&] { return lines_of(job.out()).size() == 2; }));
  job.signal(SIGTERM);
  REQUIRE(job.wait());
  const auto events = checked_events(directory.file("events"));
  CHECK(counts(events).at("signal") == 1);
  CHECK(events.back().at("outcome") == "stopped");
  const auto report = json::parse(read_file(directory.file("report")));
  CHECK(report.at("stop_signal") == "SIGTERM");
  CHECK(report.at("exit_code") == 143);
  CHECK(report.at("root_cause").is_null());
  CHECK(report.at("clean") == false);  // the signal ended them
  CHECK_THAT(job.error(), Catch::Contains("stopped by SIGTERM\n"));
  const auto own = json::parse(read_file(directory.file("own.json")));
  CHECK_THAT(own.at("message").at("message").get<std::string>(), Catch::StartsWith("SignalException: "));
}

TEST_CASE("every outcome has its verdict, its report and, where dtrun itself failed, its error file") {
  struct Row {
    const char* what;
    Words words;
    int code;
    std::string outcome;
    std::string own;  // beginning of the own error file's message
  };
  const TempDirectory directory;
  for (const auto& row : {
           Row{"success", shell({}, "exit 0"), 0, "success", ""},
           Row{"a worker fails", shell({}, "exit 7"), 7, "failure", ""},
           Row{"a worker dies", shell({}, "kill -SEGV $$"), 139, "failure", ""},
           Row{"no such program", {directory.file("missing")}, 127, "failure", "ProgramError: "},
           Row{"no such program at the start", {"--no-python", "/nonexistent"}, 127, "failure", "ProgramError: "},
           Row{"not executable", {"--no-python", "/etc/passwd"}, 126, "failure", "ProgramError: "},
           Row{"an address of another machine", {"--local-addr=192.0.2.1", "/bin/true"}, 2, "usage", "UsageError: "},
           Row{"no room for its directory",
               {"--rdzv-id=" + std::string(300, 'x'), "--master-port=0", "/bin/true"},
               75,
               "infrastructure",
               "SystemError: "},
       }) {
    INFO(row.what);
    const auto told = run_and_read(row.words);
    CHECK(told.code == row.code);
    CHECK(told.report.at("outcome") == row.outcome);
    CHECK((told.report.at("outcome") == "success" || !told.text.empty()));
    if (row.own.empty()) {
      CHECK(told.error_file.is_null());
    } else {
      REQUIRE_FALSE(told.error_file.is_null());
      const auto& message = told.error_file.at("message");
      CHECK_THAT(message.at("message").get<std::string>(), Catch::StartsWith(row.own));
      CHECK(message.at("extraInfo").at("py_callstack").is_string());
      CHECK(std::stoll(message.at("extraInfo").at("timestamp").get<std::string>()) > 1'700'000'000);
      const auto& root = told.report.at("root_cause");
      const auto text = root.is_null() ? told.report.at("error") : root.at("start_error");
      CHECK(told.events.back().at("error") == text);
      CHECK_FALSE(text.get<std::string>().empty());
    }
  }
}

TEST_CASE("the report has everything about the culprit, and one entry per attempt") {
  const std::string error_file =
      R"({\"message\": {\"message\": \"ValueError: boom\", \"extraInfo\": {\"py_callstack\": \"Traceback\nValueError: boom\", \"timestamp\": \"17\"}}})";
  const auto told = run_and_read(shell({"--nproc-per-node=2", "--max-restarts=2"},
                                       "test $RANK = 1 || exec sleep 60; echo the last line >&2; if [ "
                                       "$TORCHELASTIC_RESTART_COUNT = 2 ]; then printf '%s' \"" +
                                           error_file + "\" > $TORCHELASTIC_ERROR_FILE; fi; exit 3"));
  CHECK(told.code == 3);
  const auto& root = told.report.at("root_cause");
  CHECK(root.at("rank") == 1);
  CHECK(root.at("exit_code") == 3);
  CHECK(root.at("signal").is_null());
  CHECK(root.at("core_dumped") == false);
  CHECK(root.at("host").get<std::string>() == told.report.at("host").get<std::string>());
  CHECK(root.at("pid").get<int>() > 1);
  CHECK_THAT(root.at("time").get<std::string>(), Catch::EndsWith("Z"));
  CHECK_THAT(root.at("traceback").get<std::string>(), Catch::Contains("Traceback\n"));
  CHECK(root.at("stderr_tail").back() == "the last line");
  CHECK(told.error_file.at("message").at("errorCode") == 3);
  const auto& attempts = told.report.at("attempts");
  REQUIRE(attempts.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(attempts[i].at("attempt") == i);
    CHECK(attempts[i].at("rank") == 1);
    CHECK(attempts[i].at("exit_code") == 3);
    CHECK(attempts[i].at("message") == (i == 2 ? "ValueError: boom" : "the last line"));
  }
  CHECK_THAT(told.text, Catch::Contains("attempt 1:  rank 1") && Catch::Contains("attempt 2:  rank 1") &&
                            Catch::Contains("traceback:"));
}

TEST_CASE("the report goes into a named pipe, through a link, and never removes what is no regular file") {
  const TempDirectory directory;
  REQUIRE(::mkfifo(directory.file("pipe").c_str(), 0600) == 0);
  fs::create_symlink("real.json", directory.file("link"));
  CHECK(run(shell({"--report", directory.file("link")}, "exit 4")).code == 4);
  CHECK(fs::is_symlink(directory.file("link")));
  CHECK(nlohmann::json::parse(read_file(directory.file("real.json"))).at("exit_code") == 4);
  CHECK(run(shell({"--report", directory.file("link")}, "exit 0")).code == 0);
  CHECK(nlohmann::json::parse(read_file(directory.file("real.json"))).at("exit_code") == 0);
  std::string text;
  std::thread reader([&] { text = read_file(directory.file("pipe")); });
  CHECK(run(shell({"--report", directory.file("pipe")}, "exit 4")).code == 4);
  reader.join();
  CHECK(nlohmann::json::parse(text).at("exit_code") == 4);
  CHECK(fs::is_fifo(directory.file("pipe")));
}

TEST_CASE("a report or event file that cannot be written is found before any worker starts") {
  const TempDirectory directory;
  for (const std::string option : {"--report", "--events"}) {
    for (const auto& path : {std::string("/no/such/directory/file"), directory.path().string()}) {
      const auto outcome = run(shell({option, path}, "touch " + directory.file("started")));
      CHECK(outcome.code == 2);
      CHECK(lines_of(outcome.error).size() == 1);
      CHECK_THAT(outcome.error, Catch::Contains(option) && Catch::Contains(path + " cannot be written"));
    }
  }
  CHECK_FALSE(fs::exists(directory.file("started")));
}

TEST_CASE("a job that is lost at a restart has its attempts in the report, and its error in the verdict") {
  const TempDirectory directory;
  // The first attempt makes its log directory unusable for the second.
  const auto told = run_and_read(shell({"--max-restarts=3", "--log-dir", directory.file("logs")},
                                       "cd $DTRUN_LOG_DIR/.. && echo > attempt_1 && exit 3"));
  CHECK(told.code == 75);
  CHECK(told.report.at("outcome") == "infrastructure");
  CHECK_THAT(told.report.at("error").get<std::string>(), Catch::Contains("attempt_1"));
  CHECK(told.events.back().at("error") == told.report.at("error"));
  const auto& attempts = told.report.at("attempts");
  REQUIRE(attempts.size() == 2);
  CHECK(attempts[0].at("exit_code") == 3);
  CHECK_FALSE(attempts[1].at("end").get<std::string>().starts_with("1970"));
  CHECK_FALSE(told.error_file.is_null());
}
