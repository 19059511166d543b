#include "launcher/logs/console_text.hpp"

#include "tests/catch.hpp"

using namespace dtrun::launcher;

namespace {

std::string on_terminal(std::string_view line) {
  std::string result;
  append_console_line(result, "> ", line, true);
  return result;
}

}  // namespace

TEST_CASE("on a terminal only colours pass") {
  using namespace std::string_literals;
  struct Row {
    std::string line, shown;
  };
  for (const auto& row : {
           Row{"plain\ttext", "> plain\ttext\n"},
           Row{"grün \xe2\x82\xac \xf0\x9f\x98\x80", "> grün \xe2\x82\xac \xf0\x9f\x98\x80\n"},
           Row{"\x1b[31mred\x1b[0m", "> \x1b[31mred\x1b[0m\x1b[0m\n"},
           Row{"\x1b[38;5;200mx", "> \x1b[38;5;200mx\x1b[0m\n"},
           Row{"\x1b[2J\x1b[Hgone", "> \\x1b[2J\\x1b[Hgone\n"},
           Row{"\x1b]0;title\x07", "> \\x1b]0;title\\x07\n"},
           Row{"\x1b[31", "> \\x1b[31\n"},
           Row{"a\rforged\nline", "> a\\x0dforged\\x0aline\n"},
           Row{"nul\0del\x7f"s, "> nul\\x00del\\x7f\n"},
           Row{"c1 \xc2\x9b"s + "2J", "> c1 \\xc2\\x9b2J\n"},
           Row{"bad \xff \xc3", "> bad \\xff \\xc3\n"},
           Row{"overlong \xc0\xaf \xe0\x80\xaf", "> overlong \\xc0\\xaf \\xe0\\x80\\xaf\n"},
           Row{"surrogate \xed\xa0\x80", "> surrogate \\xed\\xa0\\x80\n"},
           Row{"turned \xe2\x80\xae", "> turned \\xe2\\x80\\xae\n"},
       }) {
    CHECK(on_terminal(row.line) == row.shown);
  }
}

TEST_CASE("elsewhere the bytes of a line are unchanged") {
  std::string result;
  append_console_line(result, "[rank3] ", "\x1b[2J\xff\x07", false);
  CHECK(result == "[rank3] \x1b[2J\xff\x07\n");
}

TEST_CASE("a prefix cannot forge a line and is coloured by rank") {
  CHECK(console_prefix("[host\n\x1b[2J0] ", 0, false) == "[host\\x0a\\x1b[2J0] ");
  CHECK(console_prefix("[rank0] ", 0, true) == "\x1b[36m[rank0] \x1b[0m");
  CHECK(console_prefix("[rank1] ", 1, true) != console_prefix("[rank1] ", 0, true));
  CHECK(console_prefix("[rank6] ", 6, true) == console_prefix("[rank6] ", 0, true));
  CHECK(console_prefix("", 3, true).empty());
}
