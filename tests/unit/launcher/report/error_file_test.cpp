#include "launcher/report/error_file.hpp"

#include <sys/stat.h>

#include <fstream>

#include "tests/catch.hpp"
#include "tests/support/files.hpp"

using namespace dtrun::launcher;

namespace {

struct WrittenFile {
  explicit WrittenFile(const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
  dtrun::tests::TempDirectory directory;
  std::string path = directory.file("error.json");
};

}  // namespace

TEST_CASE("a file of torch's @record is read") {
  const WrittenFile file(
      R"({"message": {"message": "ValueError: \u00fcber", "extraInfo": {"py_callstack": "Traceback:\n  File x\nValueError", "timestamp": "1790000000"}}})");
  const auto error = read_error_file(file.path);
  CHECK(error.present);
  CHECK(error.message == "ValueError: über");
  CHECK(error.traceback == "Traceback:\n  File x\nValueError");
  CHECK(error.timestamp == 1790000000);
  CHECK(error.note.empty());
}

TEST_CASE("the short form has a text and perhaps a time") {
  const WrittenFile plain(R"({"message": "boom"})"), timed(R"({"message": "boom", "timestamp": 12.5})");
  CHECK(read_error_file(plain.path).message == "boom");
  CHECK(read_error_file(plain.path).timestamp == 0);
  CHECK(read_error_file(timed.path).timestamp == 12.5);
}

TEST_CASE("a bad error file is a note") {
  struct Row {
    std::string text, note;
  };
  for (const auto& row : {
           Row{"", "is empty"},
           Row{"{\"message\": ", "no valid JSON"},
           Row{"\xff\xfe", "no valid JSON"},
           Row{"[]", "no \"message\""},
           Row{"17", "no \"message\""},
           Row{R"({"message": 5})", "no \"message\""},
           Row{R"({"message": {"message": 5}})", "empty message"},
           Row{R"({"message": {"message": "", "extraInfo": [1]}})", "empty message"},
           Row{std::string(500'000, '['), "no valid JSON"},
           Row{std::string(500'000, '[') + std::string(500'000, ']'), "no \"message\""},
           Row{std::string(2'000'000, ' '), "larger than 1 MiB"},
       }) {
    const WrittenFile file(row.text);
    const auto error = read_error_file(file.path);
    CHECK(error.present);
    CHECK(error.message.empty());
    CHECK_THAT(error.note, Catch::Contains(row.note) && Catch::Contains(file.path));
  }
}

TEST_CASE("what is no file is no error and never blocks") {
  const dtrun::tests::TempDirectory directory;
  CHECK(!read_error_file("").present);
  CHECK(!read_error_file(directory.file("none")).present);
  CHECK_THAT(read_error_file(directory.path().string()).note, Catch::Contains("not a regular file"));
  REQUIRE(::mkfifo(directory.file("pipe").c_str(), 0600) == 0);
  CHECK_THAT(read_error_file(directory.file("pipe")).note, Catch::Contains("not a regular file"));
}

TEST_CASE("the launcher's own error file gets the exit code") {
  const dtrun::tests::TempDirectory directory;
  const auto to = directory.file("own.json");
  const WrittenFile file(R"({"message": {"message": "E: \u00fc", "extraInfo": {"timestamp": "1"}}})");
  CHECK(copy_error_file(file.path, to, -9).empty());
  CHECK(dtrun::tests::read_file(to) ==
        R"({"message":{"errorCode":-9,"extraInfo":{"timestamp":"1"},"message":"E: \u00fc"}})");
  const WrittenFile plain(R"({"message": "boom"})"), bad("{");
  CHECK(copy_error_file(plain.path, to, 3).empty());
  CHECK(dtrun::tests::read_file(to) == R"({"message":"boom"})");
  CHECK_THAT(copy_error_file(bad.path, to, 3), Catch::Contains("no valid JSON"));
  CHECK_THAT(copy_error_file(directory.file("none"), to, 3), Catch::Contains("does not exist"));
  CHECK_THAT(copy_error_file(plain.path, "/no/such/dir/x", 3), Catch::Contains("cannot be written"));
}

TEST_CASE("a failure of the launcher itself is readable as an error file") {
  const dtrun::tests::TempDirectory directory;
  const auto path = directory.file("own.json");
  CHECK(write_error_file(path, {"UsageError", "bad \xff", 1'790'000'000, {}}).empty());
  const auto file = read_error_file(path);
  CHECK(file.present);
  CHECK(file.note.empty());
  CHECK_THAT(file.message, Catch::StartsWith("UsageError: bad "));
  CHECK_THAT(file.traceback, Catch::StartsWith("bad "));
  CHECK(file.timestamp == 1790000000);
  CHECK_THAT(write_error_file("/no/such/dir/x", {"E", "x", 0, {}}), Catch::Contains("cannot be written"));
}

TEST_CASE("the rank that was waited for is taken from its field, or from the message") {
  const auto retry = [](const std::string& text) { return read_error_file(WrittenFile(text).path).retry; };
  CHECK_FALSE(retry(R"({"message": {"message": "x", "extraInfo": {"retry": false}}})"));
  for (const auto* yes : {R"({"message": {"message": "x", "extraInfo": {"retry": true}}})",
                          R"({"message": {"message": "x", "extraInfo": {"retry": "no"}}})",
                          R"({"message": {"message": "x", "extraInfo": {}}})", R"({"message": "x"})", "{"})
    CHECK(retry(yes));
  const auto blamed = [](const std::string& text) { return read_error_file(WrittenFile(text).path).blames_rank; };
  CHECK(blamed(R"({"message": {"message": "x", "extraInfo": {"blames_rank": 12}}})") == 12);
  CHECK(blamed(R"({"message": {"message": "CommError: rank 3 is missing: y", "extraInfo": {}}})") == 3);
  CHECK(blamed(R"({"message": "after 30 s rank 7 is missing"})") == 7);
  for (const auto* none : {R"({"message": {"message": "x", "extraInfo": {"blames_rank": "2"}}})",
                           R"({"message": {"message": "x", "extraInfo": {"blames_rank": -2}}})",
                           R"({"message": "the rank is missing"})", R"({"message": "rank 2 of 3 is missing"})",
                           R"({"message": "rank -1 is missing"})", R"({"message": "rank 2 failed"})"}) {
    CHECK_FALSE(blamed(none));
  }
}
