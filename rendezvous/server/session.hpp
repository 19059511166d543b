// One client of the store server.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/server/age_list.hpp"
#include "rendezvous/server/poller.hpp"
#include "rendezvous/server/store_limits.hpp"
#include "rendezvous/store/key_space.hpp"
#include "rendezvous/wire/request_parser.hpp"

namespace dtrun::rendezvous {

class Session;

// What the sessions of one server share. Owned by the daemon, one thread.
struct SessionContext {
  StoreLimits limits;
  bool serve_1x = true;
  Poller poller;
  KeySpace space;
  // Sessions with answers to send, and sessions that have failed; the daemon empties both after each batch of events.
  std::vector<Session*> unflushed;
  std::vector<Session*> failed;
  // Waiting for the opening; open but silent for long; in the middle of a request.
  AgeList opening, silent, partial;
  std::size_t sessions_1x = 0;
  std::size_t buffered_bytes = 0;
  std::vector<char> read_buffer = std::vector<char>(std::size_t{128} << 10);
  // Scratch for the keys of WAIT.
  std::vector<std::string_view> keys;
};

// Reads what has come, executes whole requests, sends answers; never blocks. Owned by the daemon, runs on its thread. A
// fault sets failed(); the daemon then destroys it.
class Session final : public Waiter, public Watcher, public AgeHook {
 public:
  // The context must outlive it.
  Session(SessionContext& context, UniqueFd socket, Clock::time_point now);
  ~Session() override;

  // The socket has bytes (or its end).
  void receive(Clock::time_point now);
  // Sends as much as the kernel takes and asks for a call when it takes more.
  void flush();
  bool failed() const { return socket_.value() < 0; }
  bool silent() const { return !known_ && parser_.buffered() == 0; }
  // Closes the connection at once. `why` is logged, unless empty (the client went away).
  void fail(std::string_view why);
  std::size_t index = 0;  // in the daemon's table

 private:
  void woken() override;
  void changed(char kind, std::string_view key, std::string_view before, std::string_view now) override;

  void consume(std::string_view input);
  void keep_time(Clock::time_point now, bool progress);
  void opened();
  void execute(const Request& request);
  void store(const Request& request);
  void add(const Request& request);
  void wait(const Request& request);
  void barrier(const Request& request);
  void check(RequestItems keys);
  void watch(std::string_view key);
  void multi_get(RequestItems keys);
  void multi_set(RequestItems items);
  void queue_pop(std::string_view key);
  void list_keys();
  // False, and the session has failed, when the store is full.
  bool room_for(std::size_t bytes);

  void answer_byte(char byte);
  template <class Integer>
  void answer(Integer value);
  void answer_bytes(std::string_view bytes);
  bool output_room(std::size_t bytes);
  void send_now();
  void has_output();
  void account();
  std::size_t unsent() const { return out_.size() - sent_; }

  SessionContext& context_;
  UniqueFd socket_;
  RequestParser parser_;
  std::string out_;
  std::size_t sent_ = 0;
  // This session's part of context_.buffered_bytes.
  std::size_t accounted_ = 0;
  // Bytes of the unfinished request when its clock was last started.
  std::size_t partial_mark_ = 0;
  // The dialect is known.
  bool known_ = false;
  // A push did not fit.
  bool overflow_ = false;
  bool unflushed_ = false;
  bool wants_write_ = false;
};

}  // namespace dtrun::rendezvous
