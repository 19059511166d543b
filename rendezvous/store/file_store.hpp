// FileStore: the store as a file that all ranks can open, for machines with a shared directory and no network of their
// own.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/store/key_space.hpp"
#include "rendezvous/store/store.hpp"

namespace dtrun::rendezvous {

// An append-only list of changes, written under an exclusive flock; each instance replays it into its own copy. As in
// c10d, waits look at the file again and again (every 10 ms), and the last of `workers` users removes the file. A
// half-written record of a process that died is cut off by the next writer. Thread-safe; several instances and
// processes share one file. Throws SystemError, RendezvousError (not a store file), TimeoutError.
class FileStore : public Store {
 public:
  // `workers` < 0: unknown, the file stays.
  FileStore(std::string path, std::int64_t workers);
  ~FileStore() override;

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

 private:
  enum class Change : char { set = 's', erase = 'd', append = 'a', push = 'q', pop = 'p' };
  class FileLock;
  // Replays what others wrote. Call with the file locked.
  void catch_up();
  void apply(Change change, std::string_view key, std::string_view value);
  // Writes the changes and replays them. Call with the file locked exclusively and caught up.
  void write(std::string_view records);
  static void encode(std::string& out, Change change, std::string_view key, std::string_view value);
  void change(Change change, std::string_view key, std::string_view value);
  std::string value_of(std::string_view key) const;

  std::string path_;
  std::int64_t workers_;
  UniqueFd file_;
  std::mutex mutex_;
  KeySpace space_;
  std::int64_t replayed_ = 0;
};

}  // namespace dtrun::rendezvous
