// What each request does: the bridge from wire/ to store/.
#include <fmt/format.h>

#include "rendezvous/server/session.hpp"
#include "rendezvous/store/key_text.hpp"

namespace dtrun::rendezvous {

static_assert(Watcher::kUpdated == kKeyUpdated && Watcher::kCreated == kKeyCreated && Watcher::kDeleted == kKeyDeleted);

void Session::execute(const Request& request) {
  auto& space = context_.space;
  // A 1.x client sends nothing while it waits: another request means that its time ran out. Dropping the wait here
  // spares it the stray byte that puts every later answer out of step.
  if (parser_.dialect() == Dialect::v1 && waiting()) space.cancel(*this);
  if (granted()) space.settle(*this, request.op == Opcode::queue_pop ? request.key : std::string_view());
  switch (request.op) {
    case Opcode::validate:
      return;
    case Opcode::ping:
      return answer(request.nonce);
    case Opcode::set:
    case Opcode::append:
    case Opcode::queue_push:
      return store(request);
    case Opcode::get: {
      const auto* value = space.find(request.key);
      return answer_bytes(value ? std::string_view(*value) : std::string_view());
    }
    case Opcode::add:
      return add(request);
    case Opcode::compare_set:
      if (room_for(request.key.size() + request.desired.size())) {
        answer_bytes(space.compare_set(request.key, request.value, request.desired));
      }
      return;
    case Opcode::check:
      return check(request.items);
    case Opcode::wait:
      return wait(request);
    case Opcode::num_keys:
      return answer(static_cast<std::int64_t>(space.size()));
    case Opcode::watch_key:
      return watch(request.key);
    case Opcode::delete_key:
      return answer(std::int64_t{space.erase(request.key) ? 1 : 0});
    case Opcode::multi_get:
      return multi_get(request.items);
    case Opcode::multi_set:
      return multi_set(request.items);
    case Opcode::cancel_wait:
      space.cancel(*this);
      return answer_byte(kWaitCancelled);
    case Opcode::queue_pop:
      return queue_pop(request.key);
    case Opcode::queue_length:
      return answer(static_cast<std::int64_t>(space.queue_length(request.key)));
    case Opcode::list_keys:
      return list_keys();
    case Opcode::barrier:
      return barrier(request);
  }
}

bool Session::room_for(std::size_t bytes) {
  const auto limit = context_.limits.stored_bytes;
  if (context_.space.stored_bytes() + bytes + KeySpace::kOverhead <= limit) return true;
  fail(fmt::format("the store is full: {} bytes, the limit is {}", context_.space.stored_bytes(), limit));
  return false;
}

void Session::store(const Request& request) {
  if (!room_for(request.key.size() + request.value.size())) return;
  if (request.op == Opcode::set) return context_.space.set(request.key, request.value);
  if (request.op == Opcode::append) return context_.space.append(request.key, request.value);
  context_.space.queue_push(request.key, request.value);
}

void Session::add(const Request& request) {
  if (!room_for(request.key.size())) return;
  const auto sum = context_.space.add(request.key, request.number);
  if (!sum) return fail(fmt::format("ADD to {}, whose value is not a number", quoted(request.key)));
  answer(*sum);
}

void Session::check(RequestItems keys) {
  while (keys.left() > 0) {
    if (!context_.space.exists(keys.next_key())) return answer_byte(kNotReady);
  }
  answer_byte(kReady);
}

void Session::wait(const Request& request) {
  auto& keys = context_.keys;
  keys.clear();
  std::size_t bytes = 0;
  for (auto items = request.items; items.left() > 0;) {
    keys.push_back(items.next_key());
    bytes += keys.back().size() + KeySpace::kOverhead;
  }
  if (room_for(bytes) && context_.space.wait(keys, *this)) answer_byte(kStopWaiting);
}

void Session::barrier(const Request& request) {
  if (!room_for(2 * request.key.size() + KeySpace::kOverhead)) return;
  const auto complete = context_.space.barrier(request.key, request.number, *this);
  if (!complete) return fail(fmt::format("BARRIER on {}, whose value is not a number", quoted(request.key)));
  if (*complete) answer_byte(kStopWaiting);
}

void Session::watch(std::string_view key) {
  if (watched() >= context_.limits.watches_per_client) {
    return fail(fmt::format("WATCH_KEY: {} keys watched, which is the limit", watched()));
  }
  if (!room_for(2 * key.size())) return;
  context_.space.watch(key, *this);
  answer_byte(kWatchRegistered);
}

void Session::multi_get(RequestItems keys) {
  while (keys.left() > 0 && !failed()) {
    const auto* value = context_.space.find(keys.next_key());
    answer_bytes(value ? std::string_view(*value) : std::string_view());
  }
}

void Session::multi_set(RequestItems items) {
  std::size_t bytes = 0;
  for (auto all = items; all.left() > 0;) {
    bytes += all.next_key().size();
    bytes += all.take().size() + KeySpace::kOverhead;
  }
  if (!room_for(bytes)) return;
  while (items.left() > 0) {
    const auto key = items.next_key();
    context_.space.set(key, items.take());
  }
}

void Session::queue_pop(std::string_view key) {
  const auto length = context_.space.queue_length(key);
  answer(static_cast<std::int64_t>(length));
  if (length == 0 || failed()) return;
  answer_bytes(*context_.space.queue_pop(key));
}

void Session::list_keys() {
  answer(static_cast<std::int64_t>(context_.space.size()));
  context_.space.for_each_key([this](std::string_view key) { answer_bytes(key); });
}

void Session::woken() {
  out_.push_back(kStopWaiting);
  has_output();
}

void Session::changed(char kind, std::string_view key, std::string_view before, std::string_view now) {
  // The KeySpace is in the middle of its change: a watcher that does not read is closed by flush(), later.
  const auto size = 1 + 3 * sizeof(std::uint64_t) + key.size() + before.size() + now.size();
  if (unsent() + size > context_.limits.unsent_bytes_per_client) {
    overflow_ = true;
  } else {
    out_.push_back(kind);
    append_bytes(out_, key);
    append_bytes(out_, before);
    append_bytes(out_, now);
  }
  has_output();
}

void Session::answer_byte(char byte) {
  if (output_room(1)) out_.push_back(byte);
}

template <class Integer>
void Session::answer(Integer value) {
  if (output_room(sizeof value)) append_integer(out_, value);
}

void Session::answer_bytes(std::string_view bytes) {
  if (output_room(sizeof(std::uint64_t) + bytes.size())) append_bytes(out_, bytes);
}

}  // namespace dtrun::rendezvous
