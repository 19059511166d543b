#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "rendezvous/contract/error_document.hpp"
#include "rendezvous/contract/progress_file.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"

using namespace dtrun;
using dtrun::tests::read_file;
using dtrun::tests::TempDirectory;

TEST_CASE("the progress file is one line of constant width, whatever is told") {
  const TempDirectory directory;
  const auto path = directory.file("progress");
  CHECK_FALSE(read_progress(path));
  ProgressWriter writer(path);
  CHECK_FALSE(read_progress(path));  // nothing told yet
  for (const std::int64_t count :
       {std::int64_t{0}, std::int64_t{123456}, std::numeric_limits<std::int64_t>::max(), std::int64_t{5}}) {
    writer.finished_steps(count);
    CHECK(read_progress(path) == count);
    CHECK(read_file(path).size() == 21);
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
