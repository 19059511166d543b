// --rdzv-token-file and its variables: who hears of the path.
#include <map>

#include "launcher/agent/worker_environment.hpp"
#include "launcher/cli/command_line.hpp"
#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"

using namespace dtrun;
using namespace dtrun::launcher;

namespace {

CommandLine parse(const std::vector<std::string>& words, const std::map<std::string, std::string>& environment = {}) {
  return parse_command_line(words, [&](const char* name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string token_file(const std::vector<std::string>& words, const std::map<std::string, std::string>& environment) {
  return parse(words, environment).config.rendezvous.token_file;
}

}  // namespace

TEST_CASE("the token file comes from the option, PET_RDZV_TOKEN_FILE or DTRUN_TOKEN_FILE, in this order") {
  CHECK(token_file({"w"}, {}).empty());
  CHECK(token_file({"w"}, {{"DTRUN_TOKEN_FILE", "/a"}}) == "/a");
  CHECK(token_file({"w"}, {{"DTRUN_TOKEN_FILE", ""}}).empty());
  CHECK(token_file({"w"}, {{"DTRUN_TOKEN_FILE", "/a"}, {"PET_RDZV_TOKEN_FILE", "/b"}}) == "/b");
  CHECK(token_file({"--rdzv-token-file=/c", "w"}, {{"DTRUN_TOKEN_FILE", "/a"}, {"PET_RDZV_TOKEN_FILE", "/b"}}) == "/c");
  // A variable that is not set in --rdzv-token-file=$FILE must not turn protection off.
  CHECK_THROWS_WITH(parse({"--rdzv-token-file=", "w"}), Catch::Contains("--rdzv-token-file is empty"));
  for (const auto& setting : parse({"--explain", "w"}, {{"DTRUN_TOKEN_FILE", "/a"}}).settings) {
    if (setting.option != "--rdzv-token-file") continue;
    CHECK(setting.value == "/a");
    CHECK(setting.source == "DTRUN_TOKEN_FILE");
  }
}

TEST_CASE("a worker does not hear where the token is") {
  const std::vector<std::string> inherited = {"DTRUN_TOKEN_FILE=/a", "PET_RDZV_TOKEN_FILE=/b", "OTHER=1"};
  const auto environment = worker_environment(inherited, {}, RoundPlace{}, 0, {});
  for (const auto& entry : environment) CHECK(entry.find("TOKEN_FILE") == std::string::npos);
  CHECK(std::find(environment.begin(), environment.end(), "OTHER=1") != environment.end());
}
