#include "rendezvous/wire/request_parser.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "rendezvous/wire/request_writer.hpp"
#include "tests/catch.hpp"

using namespace dtrun::rendezvous;

namespace {

std::string show(const Request& request) {
  std::string text = fmt::format("{}|{}|{}|{}|{}|{}", opcode_name(request.op), request.key, request.value,
                                 request.desired, request.number, request.nonce);
  for (auto items = request.items; items.left() > 0;) {
    text += fmt::format("|{}", items.next_key());
    if (request.op == Opcode::multi_set) text += fmt::format("={}", items.take());
  }
  return text;
}

// What the parser makes of the stream when it comes in pieces of the given sizes (the last one repeats).
std::vector<std::string> parse(std::string_view stream, const std::vector<std::size_t>& pieces,
                               const RequestLimits& limits = {}) {
  RequestParser parser(limits);
  std::vector<std::string> seen;
  for (std::size_t at = 0, i = 0; at < stream.size(); ++i) {
    const auto size = std::min(pieces[std::min(i, pieces.size() - 1)], stream.size() - at);
    // A copy of exactly this piece, so that a sanitizer sees any look beyond it.
    const std::string piece(stream.substr(at, size));
    at += size;
    for (std::string_view input = piece; !input.empty();) {
      const auto status = parser.next(input);
      if (status == RequestParser::Status::need_more) break;
      if (status == RequestParser::Status::refused) {
        seen.push_back("refused: " + parser.refusal());
        return seen;
      }
      seen.push_back(show(parser.request()));
    }
  }
  if (parser.buffered() > 0) seen.push_back(fmt::format("{} bytes of the next", parser.buffered()));
  return seen;
}

std::string every_request(Dialect dialect) {
  std::string out;
  RequestWriter writer(out, dialect);
  const std::vector<std::string> keys{"/a", "", "/ccc"};
  const bool v2 = dialect == Dialect::v2;
  if (v2) {
    writer.validate();
    writer.ping(77);
  }
  writer.key_value(Opcode::set, "/key", std::string("v\0\xff", 3));
  writer.key_value(Opcode::set, "", "");
  writer.compare_set("/cs", "", "new");
  writer.key(Opcode::get, "/key");
  writer.key_number(Opcode::add, "init/", -7);
  writer.keys(Opcode::check, keys);
  writer.keys(Opcode::wait, {});
  writer.keys(Opcode::wait, keys, "p/");
  writer.bare(Opcode::num_keys);
  writer.key(Opcode::delete_key, "/key");
  if (!v2) writer.key(Opcode::watch_key, "/watched");
  if (!v2) return out;
  const std::vector<std::pair<std::string, std::string>> items{{"/m1", "a"}, {"/m2", ""}};
  writer.key_value(Opcode::append, "/ap", "one");
  writer.keys(Opcode::multi_get, keys);
  writer.multi_set(items);
  writer.multi_set({});
  writer.bare(Opcode::cancel_wait);
  writer.key_value(Opcode::queue_push, "/q", "e");
  writer.key(Opcode::queue_pop, "/q");
  writer.key(Opcode::queue_length, "/q");
  writer.bare(Opcode::list_keys);
  writer.key_number(Opcode::barrier, "/b", 4);
  return out;
}

std::string hello() {
  std::string out;
  RequestWriter(out).validate();
  return out;
}

}  // namespace

TEST_CASE("every request of both dialects is read as it was written") {
  const auto v2 = parse(every_request(Dialect::v2), {1 << 20});
  REQUIRE(v2.size() == 22);
  CHECK(v2[0] == fmt::format("VALIDATE||||0|{}", kValidateMagic));
  CHECK(v2[1] == "PING||||0|77");
  CHECK(v2[2] == std::string("SET|/key|v\0\xff||0|0", 17));
  CHECK(v2[4] == "COMPARE_SET|/cs||new|0|0");
  CHECK(v2[6] == "ADD|init/|||-7|0");
  CHECK(v2[7] == "CHECK||||0|0|/a||/ccc");
  CHECK(v2[9] == "WAIT||||0|0|p//a|p/|p//ccc");
  CHECK(v2[14] == "MULTI_SET||||0|0|/m1=a|/m2=");
  CHECK(v2[20] == "LIST_KEYS||||0|0");
  CHECK(v2[21] == "BARRIER|/b|||4|0");
  const auto v1 = parse(every_request(Dialect::v1), {1 << 20});
  REQUIRE(v1.size() == 11);
  CHECK(v1[0] == v2[2]);
  CHECK(v1[8] == "GETNUMKEYS||||0|0");
  CHECK(v1[10] == "WATCH_KEY|/watched|||0|0");
}

TEST_CASE("any split of the bytes gives the same requests") {
  for (const auto dialect : {Dialect::v1, Dialect::v2}) {
    const auto stream = every_request(dialect);
    const auto whole = parse(stream, {stream.size()});
    for (std::size_t size = 1; size < 40; ++size) CHECK(parse(stream, {size}) == whole);
    for (std::size_t first = 1; first < stream.size(); ++first) CHECK(parse(stream, {first, stream.size()}) == whole);
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::size_t> pieces(64);
      for (auto& piece : pieces) piece = 1 + random() % 30;
      CHECK(parse(stream, pieces) == whole);
    }
  }
}

TEST_CASE("the opening tells the dialect") {
  struct Row {
    std::string bytes;
    Dialect dialect;
    bool refused;
  };
  const std::vector<Row> rows{
      {std::string("\x00\xce\xf7\x85\x3c", 5), Dialect::v2, false},
      {std::string("\x00\x03\x00\x00\x00", 5), Dialect::v1, false},
      {std::string("\x00\xce\xf7\x85", 4), Dialect::unknown, false},
      {"\x06", Dialect::v1, false},
      {"\x08", Dialect::v1, false},
      {"\x09", Dialect::unknown, true},
      {"\xce", Dialect::unknown, true},
      {"GET / HTTP/1.1\r\n", Dialect::unknown, true},
      {std::string("\x00\x01\x02\x03\x04", 5), Dialect::unknown, true},
  };
  for (const auto& row : rows) {
    RequestParser parser({});
    std::string_view input = row.bytes;
    const auto status = parser.next(input);
    CHECK(parser.dialect() == row.dialect);
    CHECK((status == RequestParser::Status::refused) == row.refused);
  }
  RequestParser only_2x({}, false);
  std::string_view old = "\x06";
  CHECK(only_2x.next(old) == RequestParser::Status::refused);
}

TEST_CASE("limits are inclusive and hold before the bytes come") {
  RequestLimits limits;
  limits.key_bytes = 4;
  limits.value_bytes = 6;
  limits.keys_per_request = 2;
  const auto last = [&](auto&& write) {
    auto stream = hello();
    RequestWriter writer(stream);
    write(writer, stream);
    return parse(stream, {3}, limits).back();
  };
  CHECK(last([](auto& w, auto&) { w.key_value(Opcode::set, "1234", "123456"); }) == "SET|1234|123456||0|0");
  CHECK(last([](auto& w, auto&) { w.key_value(Opcode::set, "12345", ""); }) ==
        "refused: SET: key of 5 bytes, the limit is 4");
  CHECK(last([](auto& w, auto&) { w.key_value(Opcode::append, "1", "1234567"); }) ==
        "refused: APPEND: value of 7 bytes, the limit is 6");
  const std::vector<std::string> three{"a", "b", "c"};
  CHECK(last([&](auto& w, auto&) { w.keys(Opcode::wait, three); }) == "refused: WAIT: 3 keys, the limit is 2");
  for (const auto announced : {std::uint64_t{1} << 32, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    for (const char op : {'\x01', '\x03', '\x0a', '\x0b'}) {
      CHECK(last([&](auto&, auto& stream) {
              stream.push_back(op);
              append_integer(stream, announced);
            }).find("limit") != std::string::npos);
    }
  }
}

TEST_CASE("an unknown command and a second VALIDATE are refused") {
  CHECK(parse(hello() + '\x13', {9}).back() == "refused: unknown command 0x13");
  CHECK(parse(hello() + '\xff', {9}).back() == "refused: unknown command 0xff");
  CHECK(parse(hello() + hello(), {9}).back() == "refused: VALIDATE came twice");
  // 1.x has no APPEND, 2.x no WATCH_KEY number of its own: 7 counts keys.
  CHECK(parse("\x06\x09", {9}).back() == "refused: unknown command 0x09");
}

TEST_CASE("memory follows the bytes that came and is given back") {
  RequestParser parser({});
  auto stream = hello();
  stream.push_back(1);
  append_bytes(stream, "/k");
  append_integer<std::uint64_t>(stream, 8 << 20);
  std::string_view input = stream;
  REQUIRE(parser.next(input) == RequestParser::Status::ready);
  REQUIRE(parser.next(input) == RequestParser::Status::need_more);
  CHECK(parser.memory() < 1024);
  const std::string part(1 << 16, 'x');
  for (int i = 0; i < 128; ++i) {
    std::string_view more = part;
    const auto status = parser.next(more);
    CHECK((status == RequestParser::Status::ready) == (i == 127));
    if (i < 127) CHECK(parser.memory() <= 2 * (parser.buffered() + 64));
  }
  CHECK(parser.request().value.size() == std::size_t{8} << 20);
  parser.release();
  CHECK(parser.memory() < 8192);
}

TEST_CASE("a request of the largest key count is read in linear time, whatever the pieces") {
  std::vector<std::string> keys(128 * 1024, "/a-key-of-some-length");
  auto stream = hello();
  RequestWriter(stream).keys(Opcode::check, keys);
  for (const std::size_t piece : {std::size_t{4096}, std::size_t{7}}) {
    const auto begin = std::chrono::steady_clock::now();
    RequestParser parser({});
    std::size_t ready = 0;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      for (auto input = std::string_view(stream).substr(at, piece); !input.empty();) {
        if (parser.next(input) == RequestParser::Status::ready) ++ready;
      }
    }
    CHECK(ready == 2);
    // Quadratic work would take minutes.
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  }
}
