#include "launcher/logs/line_splitter.hpp"

#include "tests/catch.hpp"

using dtrun::launcher::LineSplitter;
using dtrun::launcher::TailBuffer;
using Lines = std::vector<std::string>;

namespace {

Lines split(std::string_view text, std::size_t piece, std::size_t max_line = LineSplitter::kMaxLine) {
  LineSplitter splitter(max_line);
  Lines lines;
  const auto take = [&](std::string_view line) { lines.emplace_back(line); };
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size()))) splitter.feed(text.substr(0, piece), take);
  splitter.finish(take);
  return lines;
}

}  // namespace

TEST_CASE("lines come out whole whatever the pieces") {
  using namespace std::string_literals;
  struct Row {
    std::string text;
    Lines expected;
  };
  for (const auto& row : {
           Row{"", {}},
           Row{"a\nbc\n", {"a", "bc"}},
           Row{"\n\na\n\n", {"", "", "a", ""}},
           Row{"no end", {"no end"}},
           Row{"a\r\nb\r\n\r\nc", {"a", "b", "", "c"}},
           Row{"\r 10%\r 20%\rdone\n", {" 10%", " 20%", "done"}},
           Row{"bar\r", {"bar"}},
           Row{"x\ry\n", {"x", "y"}},
           Row{"nul \0 here\n\0\n"s, {"nul \0 here"s, "\0"s}},
           Row{"\xff\xfe broken \xc3\n\x28", {"\xff\xfe broken \xc3", "("}},
       }) {
    for (std::size_t piece = 1; piece <= row.text.size() + 1; ++piece) {
      CAPTURE(row.text, piece);
      CHECK(split(row.text, piece) == row.expected);
    }
  }
}

TEST_CASE("a line longer than the limit is given out in pieces") {
  for (std::size_t piece = 1; piece <= 30; ++piece) {
    CAPTURE(piece);
    CHECK(split("0123456789abcdefghijklm\nxy\n", piece, 10) == Lines{"0123456789", "abcdefghij", "klm", "xy"});
    CHECK(split("0123456789\n0123456789", piece, 10) == Lines{"0123456789", "0123456789"});
  }
}

TEST_CASE("the tail keeps the last lines, cut") {
  TailBuffer tail(3);
  CHECK(tail.lines().empty());
  for (int i = 0; i < 10; ++i) tail.add(std::to_string(i));
  CHECK(tail.lines() == Lines{"7", "8", "9"});
  tail.add(std::string(5000, 'x'));
  CHECK(tail.lines().back() == std::string(TailBuffer::kMaxBytes, 'x') + "...");
  TailBuffer none(0);
  none.add("x");
  CHECK(none.lines().empty());
}
