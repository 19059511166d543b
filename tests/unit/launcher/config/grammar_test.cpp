#include "tests/catch.hpp"

#include <signal.h>

#include "launcher/config/grammar.hpp"
#include "rendezvous/base/error.hpp"

using namespace dtrun;
using namespace dtrun::launcher;

namespace {

template <class Parse>
bool refused(Parse parse) {
  try {
    parse();
    return false;
  } catch (const UsageError& error) {
    const std::string text = error.what();
    return text.find("--opt") != std::string::npos && text.find("expected") != std::string::npos;
  }
}

}  // namespace

TEST_CASE("integers follow Python's int()") {
  CHECK(parse_integer("--opt", " +2 ") == 2);
  CHECK(parse_integer("--opt", "1_0") == 10);
  CHECK(parse_integer("--opt", "-1") == -1);
  for (const auto* bad : {"", "1.0", "x", "1_", "_1", "1__0", "+-1", "0x10", "99999999999"}) {
    INFO(bad);
    CHECK(refused([&] { parse_integer("--opt", bad); }));
  }
}

TEST_CASE("numbers are finite decimals") {
  CHECK(parse_number("--opt", "0.25") == 0.25);
  CHECK(parse_number("--opt", " 3 ") == 3.0);
  for (const auto* bad : {"", "x", "1s", "inf", "nan"}) CHECK(refused([&] { parse_number("--opt", bad); }));
}

TEST_CASE("node counts are N or MIN:MAX") {
  CHECK(parse_nodes("--opt", "3") == NodeRange{3, 3});
  CHECK(parse_nodes("--opt", "1:4") == NodeRange{1, 4});
  for (const auto* bad : {"", "0", "2:1", "1:2:3", "abc", "-1", ":2", "1:"}) {
    INFO(bad);
    CHECK(refused([&] { parse_nodes("--opt", bad); }));
  }
}

TEST_CASE("worker counts are a number or a word") {
  using Kind = ProcessCount::Kind;
  CHECK(parse_process_count("--opt", " +2 ") == ProcessCount{Kind::number, 2});
  CHECK(parse_process_count("--opt", "auto").kind == Kind::automatic);
  CHECK(parse_process_count("--opt", "cpu").kind == Kind::cpu);
  CHECK(parse_process_count("--opt", "gpu").kind == Kind::gpu);
  for (const auto* bad : {"", "0", "-1", "foo", "GPU", "1.5"})
    CHECK(refused([&] { parse_process_count("--opt", bad); }));
}

TEST_CASE("stream rules name streams for all ranks or rank by rank") {
  CHECK(parse_stream_rule("--opt", "3").of(17) == 3);
  const auto rule = parse_stream_rule("--opt", "0:1,12:2,0:3");
  CHECK(rule.of(0) == 3);
  CHECK(rule.of(12) == 2);
  CHECK(rule.of(1) == 0);
  CHECK_FALSE(parse_stream_rule("--opt", "0").any());
  for (const auto* bad : {"", "4", "out", "0:4", "0:1,", "0:1, 1:2", ":1", "0:", "x:1", "-1:1", "1,2"}) {
    INFO(bad);
    CHECK(refused([&] { parse_stream_rule("--opt", bad); }));
  }
}

TEST_CASE("rendezvous settings are key=value pairs") {
  const auto conf = parse_conf("--opt", " a = 1 , b=x=y,a=2");
  CHECK(conf.at("a") == "2");
  CHECK(conf.at("b") == "x=y");
  CHECK(parse_conf("--opt", "").empty());
  for (const auto* bad : {"foo", "a=", "=1", "a=1,"}) CHECK(refused([&] { parse_conf("--opt", bad); }));
}

TEST_CASE("filters split at single commas, a double comma is one comma") {
  using Needles = std::vector<std::string>;
  CHECK(parse_filters("") == Needles{});
  CHECK(parse_filters("apple,pear") == Needles{"apple", "pear"});
  CHECK(parse_filters("a,,b") == Needles{"a,b"});
  CHECK(parse_filters("apple,") == Needles{"apple", ""});
}

TEST_CASE("rank filters are integers with commas between") {
  CHECK(parse_ranks("--opt", "0, 7") == std::vector<int>{0, 7});
  CHECK(parse_ranks("--opt", "").empty());
  CHECK(refused([&] { parse_ranks("--opt", "a"); }));
  CHECK(refused([&] { parse_ranks("--opt", "1,"); }));
}

TEST_CASE("signal lists keep what exists and hand back the rest") {
  const auto list = parse_signals("SIGTERM,SIGNOPE, SIGUSR1");
  CHECK(list.known == std::vector<int>{SIGTERM, SIGUSR1});
  CHECK(list.unknown == std::vector<std::string>{"SIGNOPE"});
}
