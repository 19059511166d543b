#include "tests/catch.hpp"

#include <fmt/ranges.h>

#include "launcher/config/hostlist.hpp"
#include "rendezvous/base/error.hpp"

using namespace dtrun;
using namespace dtrun::launcher;

TEST_CASE("a host list is expanded in its order, zeros kept") {
  const std::pair<std::string, std::string> rows[] = {
      {"x", "x"},
      {"a,b,c", "a b c"},
      {"gpu[001-003,7],login-a[1-2]b[3-4],x",
       "gpu001 gpu002 gpu003 gpu7 login-a1b3 login-a1b4 login-a2b3 login-a2b4 x"},
      {"n[08-11]", "n08 n09 n10 n11"},
      {"n[8-11]", "n8 n9 n10 n11"},
      {"n[099-101]", "n099 n100 n101"},
      {"n[0]", "n0"},
      {"n[3,1,2]", "n3 n1 n2"},
      {"n[1-2]-ib0.cluster.example", "n1-ib0.cluster.example n2-ib0.cluster.example"},
      {"[1-2]", "1 2"},
      {"a[1-2][01-02]", "a101 a102 a201 a202"},
      {"n[5-5]", "n5"},
      {"r1_n2", "r1_n2"},
  };
  for (const auto& [text, expected] : rows) {
    CAPTURE(text);
    CHECK(fmt::format("{}", fmt::join(expand_hostlist("L", text), " ")) == expected);
  }
}

TEST_CASE("what is no host list is refused with its reason") {
  const std::pair<std::string, std::string> rows[] = {
      {"", "a name is empty"},
      {"a,,b", "a name is empty"},
      {"a,", "a name is empty"},
      {",a", "a name is empty"},
      {"(null)", "'(' does not belong there"},
      {"a b", "' ' does not belong there"},
      {"a]b", "']' does not belong there"},
      {"a\033[1m", "'?' does not belong there"},
      {"a[1-", "a bracket holds"},
      {"a[1-2", "a bracket holds something else than numbers and ranges, or is not closed"},
      {"a[]", "a bracket holds"},
      {"a[1,]", "a bracket holds"},
      {"a[1-2-3]", "a bracket holds"},
      {"a[x]", "a bracket holds"},
      {"a[-1]", "a bracket holds"},
      {"a[[1]]", "a bracket holds"},
      {"a[3-1]", "the range 3-1 runs backwards"},
      {"a[1-9999999999999]", "a number is too long"},
      {"a[0-65536]", "there are more than 65536"},
      {"a[0-999999999999]", "there are more than 65536"},
      {"a[0-255]b[0-256]", "there are more than 65536"},
      {"a[0-65535],b", "there are more than 65536"},
      {std::string(256, 'a'), "a name is longer than 255 characters"},
  };
  for (const auto& [text, why] : rows) {
    CAPTURE(text);
    std::string refusal = "accepted";
    try {
      expand_hostlist("SLURM_STEP_NODELIST", text);
    } catch (const UsageError& error) {
      refusal = error.what();
    }
    CHECK(refusal.starts_with("[cli] SLURM_STEP_NODELIST is \""));
    CHECK(refusal.find(": " + why) != std::string::npos);
    CHECK(refusal.find('\033') == std::string::npos);
  }
  CHECK(expand_hostlist("L", "a[0-65535]").size() == kMostHosts);
}
