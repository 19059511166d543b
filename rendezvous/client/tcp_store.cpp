#include "rendezvous/client/tcp_store.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>

#include "rendezvous/base/error.hpp"
#include "rendezvous/client/connection.hpp"
#include "rendezvous/store/key_text.hpp"
#include "rendezvous/wire/request_writer.hpp"

namespace dtrun::rendezvous {
namespace {

// What c10d clients put before every key of the user.
constexpr std::string_view kUserPrefix = "/";
constexpr std::string_view kWorkerCounter = "init/";
// A wait is withdrawn when its own time is over already: the answer to CANCEL_WAIT gets some of its own.
constexpr auto kCancelTime = std::chrono::seconds(5);

std::string wire_key(std::string_view key) { return std::string(kUserPrefix).append(key); }

}  // namespace

// The connection and the right to use it: one caller at a time, and waiting for one's turn has a deadline too.
class TcpStore::Session {
 public:
  Session(const TcpStoreOptions& chosen, const ConnectWatch& watch)
      : options(chosen), connection(Endpoint{chosen.host, chosen.port}, Deadline::after(chosen.timeout), watch) {}

  std::int64_t count_in(std::int64_t delta, Deadline deadline) {
    send(deadline, [&](RequestWriter& writer) { writer.key_number(Opcode::add, kWorkerCounter, delta); });
    return connection.receive_integer<std::int64_t>(deadline);
  }

  class Turn {
   public:
    Turn(Session& session, Deadline deadline) : session_(session) {
      std::unique_lock lock(session.mutex_);
      if (!session.free_.wait_until(lock, deadline.at(), [&] { return !session.busy_; })) {
        throw TimeoutError("store", fmt::format("timed out: another call on this client of {} is still running",
                                                session.connection.server().to_string()));
      }
      if (session.connection.broken()) {
        throw RendezvousError("store",
                              fmt::format("the connection to the store at {} broke earlier: {}",
                                          session.connection.server().to_string(), session.connection.why_broken()));
      }
      session.busy_ = true;
    }
    ~Turn() {
      const std::lock_guard lock(session_.mutex_);
      session_.busy_ = false;
      session_.free_.notify_one();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Session& session_;
  };

  // Answers to these come at once from a healthy server.
  template <class Write>
  void send(Deadline deadline, Write&& write) {
    request_.clear();
    RequestWriter writer(request_);
    write(writer);
    connection.send(request_, deadline);
    if (request_.capacity() > std::size_t{1} << 16) std::string().swap(request_);
  }

  // After a WAIT or BARRIER was sent. False at the deadline, with the wait withdrawn.
  bool await_wake(Deadline deadline) {
    if (connection.readable(deadline)) {
      expect(kStopWaiting);
      return true;
    }
    const auto limit = Deadline::after(kCancelTime);
    send(limit, [](RequestWriter& writer) { writer.bare(Opcode::cancel_wait); });
    const auto first = connection.receive_integer<std::uint8_t>(limit);
    if (first == kWaitCancelled) return false;
    // The wake-up and the cancellation crossed: it came after all, and the answer to CANCEL_WAIT follows.
    if (first == kStopWaiting && connection.receive_integer<std::uint8_t>(limit) == kWaitCancelled) return true;
    connection.interrupt();
    throw RendezvousError("store", fmt::format("{} answered nonsense to CANCEL_WAIT", connection.server().to_string()));
  }

  void expect(char answer) {
    const auto got = connection.receive_integer<char>(Deadline::after(kCancelTime));
    if (got == answer) return;
    connection.interrupt();
    throw RendezvousError("store", fmt::format("{} answered {} to a wait, expected {}", connection.server().to_string(),
                                               int{got}, int{answer}));
  }

  void wait(std::span<const std::string> keys, Duration timeout, Deadline deadline) {
    send(deadline, [&](RequestWriter& writer) { writer.keys(Opcode::wait, keys, kUserPrefix); });
    if (await_wake(deadline)) return;
    throw TimeoutError("store", fmt::format("timed out after {} ms waiting for {} in the store at {}", timeout.count(),
                                            quoted_list(keys), connection.server().to_string()));
  }

  std::optional<std::string> pop(const std::string& key, Deadline deadline) {
    send(deadline, [&](RequestWriter& writer) { writer.key(Opcode::queue_pop, wire_key(key)); });
    if (connection.receive_integer<std::int64_t>(deadline) <= 0) return std::nullopt;
    return connection.receive_bytes(deadline);
  }

  const TcpStoreOptions options;
  Connection connection;

 private:
  std::mutex mutex_;
  std::condition_variable free_;
  bool busy_ = false;
  std::string request_;
};

TcpStore::TcpStore(TcpStoreOptions options, const ConnectWatch& watch)
    : session_(std::make_unique<Session>(options, watch)) {
  set_timeout(options.timeout);
  if (options.world_size) count_in();
}

TcpStore::~TcpStore() = default;

void TcpStore::set(std::string_view key, std::string_view value) {
  const auto deadline = Deadline::after(timeout());
  const Session::Turn turn(*session_, deadline);
  session_->send(deadline, [&](RequestWriter& writer) { writer.key_value(Opcode::set, wire_key(key), value); });
}

std::string TcpStore::get(std::string_view key, Duration timeout) {
  const auto deadline = Deadline::after(timeout);
  const Session::Turn turn(*session_, deadline);
  const std::string wanted(key);
  session_->wait({&wanted, 1}, timeout, deadline);
  // It is there: its transfer has the store's own time, however little of the caller's is left.
  const auto transfer = Deadline::after(this->timeout());
  session_->send(transfer, [&](RequestWriter& writer) { writer.key(Opcode::get, wire_key(key)); });
  return session_->connection.receive_bytes(transfer);
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t delta) {
  const auto deadline = Deadline::after(timeout());
  const Session::Turn turn(*session_, deadline);
  session_->send(deadline, [&](RequestWriter& writer) { writer.key_number(Opcode::add, wire_key(key), delta); });
  return session_->connection.receive_integer<std::int64_t>(deadline);
}

std::string TcpStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  const auto deadline = Deadline::after(timeout());
  const Session::Turn turn(*session_, deadline);
  session_->send(deadline, [&](RequestWriter& writer) { writer.compare_set(wire_key(key), expected, desired); });
  return session_->connection.receive_bytes(deadline);
}

bool TcpStore::check(std::span<const std::string> keys) {
  const auto deadline = Deadline::after(timeout());
  const Session::Turn turn(*session_, deadline);
  session_->send(deadline, [&](RequestWriter& writer) { writer.keys(Opcode::check, keys, kUserPrefix); });
  return session_->connection.receive_integer<char>(deadline) == kReady;
}

void TcpStore::wait(std::span<const std::string> keys, Duration timeout) {
  const auto deadline = Deadline::after(timeout);
  const Session::Turn turn(*session_, deadline);
  session_->wait(keys, timeout, deadline);
}

std::int64_t TcpStore::num_keys() {
  const auto deadline = Deadline::after(timeout());
  const Session::Turn turn(*session_, deadline);
  session_->send(deadline, [](RequestWriter& writer) { writer.bare(Opcode::num_keys); });
  return session_->connection.receive_integer<std::int64_t>(deadline);
}

bool TcpStore::delete_key(std::string_view key) {
  const auto deadline = Deadline::after(timeout());
  const Session::Turn turn(*session_, deadline);
  session_->send(deadline, [&](RequestWriter& writer) { writer.key(Opcode::delete_key, wire_key(key)); });
  return session_->connection.receive_integer<std::int64_t>(deadline) > 0;
}

void TcpStore::append(std::string_view key, std::string_view value) {
  const auto deadline = Deadline::after(timeout());
  const Session::Turn turn(*session_, deadline);
  session_->send(deadline, [&](RequestWriter& writer) { writer.key_value(Opcode::append, wire_key(key), value); });
}

std::vector<std::string> TcpStore::multi_get(std::span<const std::string> keys, Duration timeout) {
  const auto deadline = Deadline::after(timeout);
  const Session::Turn turn(*session_, deadline);
  session_->wait(keys, timeout, deadline);
  const auto transfer = Deadline::after(this->timeout());
  session_->send(transfer, [&](RequestWriter& writer) { writer.keys(Opcode::multi_get, keys, kUserPrefix); });
  std::vector<std::string> values;
  values.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) values.push_back(session_->connection.receive_bytes(transfer));
  return values;
}

void TcpStore::multi_set(std::span<const std::pair<std::string, std::string>> items) {
  const auto deadline = Deadline::after(timeout());
  const Session::Turn turn(*session_, deadline);
  session_->send(deadline, [&](RequestWriter& writer) { writer.multi_set(items, kUserPrefix); });
}

void TcpStore::queue_push(std::string_view key, std::string_view value) {
  const auto deadline = Deadline::after(timeout());
  const Session::Turn turn(*session_, deadline);
  session_->send(deadline, [&](RequestWriter& writer) { writer.key_value(Opcode::queue_push, wire_key(key), value); });
}

std::string TcpStore::queue_pop(std::string_view key, Duration timeout) {
  const auto deadline = Deadline::after(timeout);
  const Session::Turn turn(*session_, deadline);
  const std::string wanted(key);
  // Another client may take the element between the wake-up and the pop. A plain key of the same name ends the wait at
  // once, every time: the pause keeps that from being a busy loop.
  for (int round = 0;; ++round) {
    session_->wait({&wanted, 1}, timeout, deadline);
    if (auto value = session_->pop(wanted, Deadline::after(this->timeout()))) return *std::move(value);
    if (deadline.passed()) {
      throw TimeoutError("store", fmt::format("timed out after {} ms: queue {} in the store at {} stayed empty",
                                              timeout.count(), quoted(key), session_->connection.server().to_string()));
    }
    if (round > 0) session_->connection.readable(Deadline::after(std::chrono::milliseconds(std::min(round, 50))));
  }
}

std::optional<std::string> TcpStore::queue_try_pop(std::string_view key) {
  const auto deadline = Deadline::after(timeout());
  const Session::Turn turn(*session_, deadline);
  return session_->pop(std::string(key), deadline);
}

std::int64_t TcpStore::queue_length(std::string_view key) {
  const auto deadline = Deadline::after(timeout());
  const Session::Turn turn(*session_, deadline);
  session_->send(deadline, [&](RequestWriter& writer) { writer.key(Opcode::queue_length, wire_key(key)); });
  return session_->connection.receive_integer<std::int64_t>(deadline);
}

void TcpStore::count_in() {
  const auto deadline = Deadline::after(timeout());
  const Session::Turn turn(*session_, deadline);
  session_->count_in(1, deadline);
}

std::int64_t TcpStore::workers_here() {
  const auto deadline = Deadline::after(timeout());
  const Session::Turn turn(*session_, deadline);
  return session_->count_in(0, deadline);
}

std::vector<std::string> TcpStore::list_keys() {
  const auto deadline = Deadline::after(timeout());
  const Session::Turn turn(*session_, deadline);
  session_->send(deadline, [](RequestWriter& writer) { writer.bare(Opcode::list_keys); });
  std::vector<std::string> keys;
  for (auto left = session_->connection.receive_integer<std::int64_t>(deadline); left > 0; --left) {
    auto key = session_->connection.receive_bytes(deadline);
    if (key.starts_with(kUserPrefix)) keys.push_back(key.substr(kUserPrefix.size()));
  }
  return keys;
}

void TcpStore::barrier(std::string_view key, std::int64_t world_size, Duration timeout) {
  const auto deadline = Deadline::after(timeout);
  const Session::Turn turn(*session_, deadline);
  session_->send(deadline,
                 [&](RequestWriter& writer) { writer.key_number(Opcode::barrier, wire_key(key), world_size); });
  if (session_->await_wake(deadline)) return;
  throw TimeoutError(
      "store", fmt::format("timed out after {} ms at barrier {} of {} in the store at {}", timeout.count(), quoted(key),
                           world_size, session_->connection.server().to_string()));
}

std::unique_ptr<TcpStore> TcpStore::clone() const {
  auto options = session_->options;
  options.timeout = timeout();
  options.world_size.reset();
  return std::make_unique<TcpStore>(options);
}

void TcpStore::interrupt() noexcept { session_->connection.interrupt(); }
const TcpStoreOptions& TcpStore::options() const { return session_->options; }
std::string TcpStore::local_address() const { return session_->connection.local_address(); }

}  // namespace dtrun::rendezvous
