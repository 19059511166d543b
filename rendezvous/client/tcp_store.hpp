// TcpStore: a client of any c10d TCPStore server of PyTorch 2.2 and later, or of dtrun's own (StoreServer).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/store/store.hpp"

namespace dtrun::rendezvous {

struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  // One budget for resolving the name, all connection attempts and the hello; afterwards the default of every blocking
  // call.
  Store::Duration timeout = Store::kDefaultTimeout;
  // When given, this client counts itself in at "init/", as torch's TCPStore(world_size=...) does.
  std::optional<std::int64_t> world_size;
};

// Thread-safe; calls of one store run one after another (a blocked wait holds the others back: use clone() for a second
// line). Throws TimeoutError when a deadline passes (the store stays usable after a wait that timed out) and
// RendezvousError, naming host and port, when the server is not found, refuses, goes away or answers nonsense (the
// store is then broken for good).
class TcpStore : public Store {
 public:
  // `watch` is asked after every try to connect that failed, with the reason; false gives up.
  explicit TcpStore(TcpStoreOptions options, const std::function<bool(const std::string& why)>& watch = {});
  ~TcpStore() override;

  using Store::get;
  using Store::wait;
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, Duration timeout) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
  bool check(std::span<const std::string> keys) override;
  void wait(std::span<const std::string> keys, Duration timeout) override;
  std::int64_t num_keys() override;
  bool delete_key(std::string_view key) override;
  void append(std::string_view key, std::string_view value) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys, Duration timeout) override;
  void multi_set(std::span<const std::pair<std::string, std::string>> items) override;
  void queue_push(std::string_view key, std::string_view value) override;
  std::string queue_pop(std::string_view key, Duration timeout) override;
  std::int64_t queue_length(std::string_view key) override;
  std::vector<std::string> list_keys() override;
  void barrier(std::string_view key, std::int64_t world_size, Duration timeout) override;

  // The element in front of the queue, or nothing, without waiting.
  std::optional<std::string> queue_try_pop(std::string_view key);
  // What `world_size` does, for a caller that tells a server that was not found from one that went away.
  void count_in();
  // How many clients have counted themselves in.
  std::int64_t workers_here();
  // A second connection to the same server.
  std::unique_ptr<TcpStore> clone() const;
  // Ends the call in progress and every later one with RendezvousError. From any thread; for tearing down.
  void interrupt() noexcept;
  const TcpStoreOptions& options() const;
  // This machine's address on the way to the server, numeric.
  std::string local_address() const;

 private:
  class Session;
  std::unique_ptr<Session> session_;
};

}  // namespace dtrun::rendezvous
