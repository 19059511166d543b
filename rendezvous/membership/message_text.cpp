#include "rendezvous/membership/message_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <type_traits>
#include <utility>

#include "rendezvous/base/escaped.hpp"
#include "rendezvous/base/job_id.hpp"

namespace dtrun::rendezvous {
namespace {

using nlohmann::json;

constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kC10dOpening = 0x00cef785;     // VALIDATE and its magic number begin with 00 ce f7 85
constexpr std::size_t kOldC10dOpening = 0x03050000;  // ADD "init/", of PyTorch before 2.0
constexpr std::size_t kMaxTextBytes = 4096;          // of a sentence; bad UTF-8 triples when it is sent
constexpr std::size_t kMaxNameBytes = 256;           // of everything else

std::size_t max_bytes(std::string_view field) {
  return field == "text" || field == "why" || field == "reason" ? kMaxTextBytes : kMaxNameBytes;
}

// The fields of each message, said once for both directions. `Archive` reads or writes.
template <class Archive>
void fields(Archive& a, Hello& m) {
  a("job", m.job), a("version", m.version), a("node", m.node), a("address", m.address), a("slots", m.slots);
  a("node_rank", m.node_rank), a("role", m.role), a("min_nodes", m.min_nodes), a("max_nodes", m.max_nodes);
}
template <class Archive>
void fields(Archive& a, Heartbeat& m) {
  a("number", m.number), a("epoch", m.epoch);
}
template <class Archive>
void fields(Archive& a, Ready& m) {
  a("epoch", m.epoch), a("store_port", m.store_port), a("store_host", m.store_host);
}
template <class Archive>
void fields(Archive& a, Verdict& m) {
  a("exit_code", m.exit_code), a("text", m.text), a("node", m.node), a("rank", m.rank);
  a("no_restart", m.no_restart);
}
template <class Archive>
void fields(Archive& a, Report& m) {
  a("epoch", m.epoch), a("success", m.success), a("retry", m.retry), fields(a, m.verdict);
  a("step", m.step), a("out_of_memory", m.out_of_memory);
}
template <class Archive>
void fields(Archive& a, Stopped& m) {
  a("epoch", m.epoch), a("step", m.step);
}
template <class Archive>
void fields(Archive& a, Leave& m) {
  a("reason", m.reason);
}
template <class Archive>
void fields(Archive& a, Welcome& m) {
  a("agent", m.agent), a("heartbeat_ms", m.heartbeat_ms), a("dead_after_ms", m.dead_after_ms);
}
template <class Archive>
void fields(Archive& a, Refuse& m) {
  a("why", m.why), a("again", m.again);
}
template <class Archive>
void fields(Archive& a, Assignment& m) {
  a("epoch", m.epoch), a("restart_count", m.restart_count), a("group_rank", m.group_rank);
  a("group_world_size", m.group_world_size), a("first_rank", m.first_rank), a("slots", m.slots);
  a("world_size", m.world_size), a("open_store", m.open_store);
  a("first_role_rank", m.first_role_rank), a("role_world_size", m.role_world_size);
}
template <class Archive>
void fields(Archive& a, Start& m) {
  a("epoch", m.epoch), a("store_host", m.store_host), a("store_port", m.store_port);
}
template <class Archive>
void fields(Archive& a, Stop& m) {
  a("epoch", m.epoch), a("why", m.why);
}
template <class Archive>
void fields(Archive& a, HeartbeatAnswer& m) {
  a("number", m.number);
}
template <class Archive>
void fields(Archive&, Ping&) {}
template <class Archive>
void fields(Archive& a, Waiting& m) {
  a("here", m.here), a("wanted", m.wanted), a("seconds", m.seconds), a("running", m.running);
}
template <class Archive>
void fields(Archive& a, Finished& m) {
  fields(a, m.verdict);
}

// In the order of the variants.
constexpr std::string_view kToCoordinatorNames[] = {"hello", "heartbeat", "ready", "report", "stopped", "leave"};
constexpr std::string_view kToAgentNames[] = {"welcome",          "refuse", "assignment", "start",   "stop",
                                              "heartbeat_answer", "ping",   "waiting",    "finished"};
static_assert(std::size(kToCoordinatorNames) == std::variant_size_v<ToCoordinator>);
static_assert(std::size(kToAgentNames) == std::variant_size_v<ToAgent>);

class Writer {
 public:
  template <class Value>
  void operator()(const char* name, const Value& value) {
    object[name] = value;
  }
  // Control characters would be refused, and one text must not make a message too long.
  void operator()(const char* name, const std::string& text) {
    auto clean = text.substr(0, max_bytes(name));
    std::replace_if(
        clean.begin(), clean.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
    object[name] = std::move(clean);
  }
  void operator()(const char* name, const std::optional<int>& value) {
    object[name] = value ? json(*value) : json(nullptr);
  }
  json object;
};

class Reader {
 public:
  explicit Reader(json whole) : object_(std::move(whole)) {}

  template <class Integer>
  requires std::is_integral_v<Integer>
  void operator()(const char* name, Integer& value) {
    const json& field = take(name);
    if constexpr (std::is_same_v<Integer, bool>) {
      if (!field.is_boolean()) wrong(name, "true or false");
      value = field.get<bool>();
    } else {
      value = integer<Integer>(name, field);
    }
  }
  void operator()(const char* name, std::optional<int>& value) {
    const json& field = take(name);
    if (!field.is_null()) value = integer<int>(name, field);
  }
  void operator()(const char* name, std::string& value) {
    const json& field = take(name);
    if (!field.is_string()) wrong(name, "a text");
    value = field.get<std::string>();
    const bool control = std::any_of(value.begin(), value.end(),
                                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    if (control) wrong(name, "a text without control characters");
    if (value.size() > 3 * max_bytes(name)) wrong(name, "a text of this length");
    if (name == std::string_view("job") && !is_job_id(value)) wrong(name, kJobIdRule);
    value = escaped(value);  // here, so that nobody who shows it can forget
  }
  void finish() const {
    if (taken_ + 1 != object_.size()) throw MessageError("a message with unknown fields");
  }

 private:
  const json& take(const char* name) {
    const auto found = object_.find(name);
    if (found == object_.end()) throw MessageError(fmt::format("a message without \"{}\"", name));
    ++taken_;
    return *found;
  }
  [[noreturn]] static void wrong(const char* name, std::string_view expected) {
    throw MessageError(fmt::format("\"{}\" of a message is not {}", name, expected));
  }
  template <class Integer>
  static Integer integer(const char* name, const json& field) {
    // The parser calls a number unsigned when it has no minus sign.
    if (field.is_number_unsigned()) {
      const auto number = field.get<std::uint64_t>();
      if (number <= static_cast<std::uint64_t>(std::numeric_limits<Integer>::max()))
        return static_cast<Integer>(number);
    } else if (field.is_number_integer() && std::is_signed_v<Integer>) {
      const auto number = field.get<std::int64_t>();
      if (number >= static_cast<std::int64_t>(std::numeric_limits<Integer>::min())) return static_cast<Integer>(number);
    }
    wrong(name, "an integer in range");
  }

  json object_;
  std::size_t taken_ = 0;
};

template <class Variant>
std::string encode_any(const Variant& message, std::span<const std::string_view> names) {
  Writer writer;
  writer("type", std::string(names[message.index()]));
  std::visit([&](auto content) { fields(writer, content); }, message);
  const auto text = writer.object.dump(-1, ' ', false, json::error_handler_t::replace);
  DTRUN_ASSERT(text.size() <= kMaxMessageBytes);
  return framed(text);
}

template <class Variant, std::size_t... Index>
Variant read_alternative(std::size_t wanted, Reader& reader, std::index_sequence<Index...>) {
  Variant result;
  const auto read = [&]<class Message>(Message message) {
    fields(reader, message);
    result = std::move(message);
  };
  ((wanted == Index ? read(std::variant_alternative_t<Index, Variant>{}) : void()), ...);
  return result;
}

template <class Variant>
Variant decode_any(std::string_view text, std::span<const std::string_view> names) {
  if (text.size() > kMaxMessageBytes) throw MessageError("a message that is too long");
  // Ours are flat: no deep nesting to be parsed.
  if (std::count(text.begin(), text.end(), '{') + std::count(text.begin(), text.end(), '[') > 64)
    throw MessageError("a message that is no JSON object of ours");
  auto object = json::parse(text, nullptr, false);
  if (!object.is_object()) throw MessageError("a message that is no JSON object");
  const auto type = object.find("type");
  if (type == object.end() || !type->is_string()) throw MessageError("a message without a type");
  const auto name = std::find(names.begin(), names.end(), type->get<std::string>());
  if (name == names.end()) throw MessageError(fmt::format("a message of unknown type"));
  Reader reader(std::move(object));
  auto result = read_alternative<Variant>(static_cast<std::size_t>(name - names.begin()), reader,
                                          std::make_index_sequence<std::variant_size_v<Variant>>());
  reader.finish();
  return result;
}

}  // namespace

std::string framed(std::string_view message) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(message.size() >> shift));
  return bytes.append(message);
}

std::string encode(const ToCoordinator& message) { return encode_any(message, kToCoordinatorNames); }
std::string encode(const ToAgent& message) { return encode_any(message, kToAgentNames); }
ToCoordinator decode_to_coordinator(std::string_view json) {
  return decode_any<ToCoordinator>(json, kToCoordinatorNames);
}
ToAgent decode_to_agent(std::string_view json) { return decode_any<ToAgent>(json, kToAgentNames); }

std::optional<std::string> MessageSplitter::next(std::string_view& input) {
  const auto take = [&](std::size_t size) {
    const auto part = input.substr(0, size - std::min(size, held_.size()));
    held_ += part;
    input.remove_prefix(part.size());
    return held_.size() >= size;
  };
  if (!take(kLengthBytes)) return {};
  std::size_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length = length << 8 | static_cast<unsigned char>(held_[i]);
  if (length == kC10dOpening || length == kOldC10dOpening)
    throw MessageError("a PyTorch c10d client, such as torchrun's agent: run dtrun on every node");
  const auto printable = [](char c) { return c >= 0x20 && c < 0x7f; };
  if (length > limit_ && std::all_of(held_.begin(), held_.end(), printable))
    throw MessageError(fmt::format("text that begins with \"{}\"", held_));
  if (length == 0 || length > limit_)
    throw MessageError(fmt::format("a message of {} bytes, expected 1 to {}", length, limit_));
  if (!take(kLengthBytes + length)) return {};
  auto message = held_.substr(kLengthBytes);
  held_.clear();
  return message;
}

}  // namespace dtrun::rendezvous
