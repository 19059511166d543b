#include "rendezvous/store/file_store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "rendezvous/base/error.hpp"
#include "rendezvous/store/key_text.hpp"

namespace dtrun::rendezvous {
namespace {

constexpr auto kLookAgain = std::chrono::milliseconds(10);
// Record: kind, u64 key length, u64 value length, key, value.
constexpr std::size_t kHeader = 1 + 2 * sizeof(std::uint64_t);
constexpr std::uint64_t kLargest = std::uint64_t{1} << 32;
// The store's own counter of users that have left; users' keys carry a prefix so that they cannot meet it.
constexpr std::string_view kLeft = "left";

std::string user_key(std::string_view key) { return "/" + std::string(key); }

}  // namespace

// Of other processes and other instances; held only for the moment of one operation.
class FileStore::FileLock {
 public:
  FileLock(FileStore& store, int how) : guard_(store.mutex_), fd_(store.file_.value()) {
    while (::flock(fd_, how) != 0) {
      if (errno != EINTR) throw_errno("store", fmt::format("cannot lock {}", quoted(store.path_)));
    }
    store.catch_up();
  }
  ~FileLock() { ::flock(fd_, LOCK_UN); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  std::lock_guard<std::mutex> guard_;
  int fd_;
};

FileStore::FileStore(std::string path, std::int64_t workers)
    : path_(std::move(path)), workers_(workers), file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
  if (!file_) throw_errno("store", fmt::format("cannot open the store file {}", quoted(path_)));
  const FileLock lock(*this, LOCK_SH);
}

FileStore::~FileStore() {
  if (workers_ < 0) return;
  try {
    const FileLock lock(*this, LOCK_EX);
    const auto* left = space_.find(kLeft);
    const auto now = left ? leading_number(*left).value_or(0) + 1 : 1;
    std::string record;
    encode(record, Change::set, kLeft, std::to_string(now));
    write(record);
    if (now >= workers_) ::unlink(path_.c_str());
  } catch (const Error&) {
    // The file stays: leaving is best effort.
  }
}

void FileStore::encode(std::string& out, Change change, std::string_view key, std::string_view value) {
  const std::uint64_t sizes[2] = {key.size(), value.size()};
  out.push_back(static_cast<char>(change));
  out.append(reinterpret_cast<const char*>(sizes), sizeof sizes);
  out.append(key).append(value);
}

void FileStore::apply(Change change, std::string_view key, std::string_view value) {
  switch (change) {
    case Change::set:
      return space_.set(key, value);
    case Change::append:
      return space_.append(key, value);
    case Change::push:
      return space_.queue_push(key, value);
    case Change::erase:
      space_.erase(key);
      return;
    case Change::pop:
      space_.queue_pop(key);
      return;
  }
  throw RendezvousError("store",
                        fmt::format("{} is not a store file: unknown record at byte {}", quoted(path_), replayed_));
}

void FileStore::catch_up() {
  struct stat info {};
  if (::fstat(file_.value(), &info) != 0) throw_errno("store", fmt::format("cannot read {}", quoted(path_)));
  if (info.st_size <= replayed_) return;
  std::string news(static_cast<std::size_t>(info.st_size - replayed_), '\0');
  for (std::size_t have = 0; have < news.size();) {
    const auto got =
        ::pread(file_.value(), news.data() + have, news.size() - have, replayed_ + static_cast<off_t>(have));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw_errno("store", fmt::format("cannot read {}", quoted(path_)), got < 0 ? errno : EIO);
    have += static_cast<std::size_t>(got);
  }
  for (std::string_view rest = news; rest.size() >= kHeader;) {
    std::uint64_t sizes[2];
    std::memcpy(sizes, rest.data() + 1, sizeof sizes);
    if (sizes[0] > kLargest || sizes[1] > kLargest) {
      throw RendezvousError("store",
                            fmt::format("{} is not a store file: absurd length at byte {}", quoted(path_), replayed_));
    }
    const auto whole = kHeader + sizes[0] + sizes[1];
    if (rest.size() < whole) break;
    apply(static_cast<Change>(rest[0]), rest.substr(kHeader, sizes[0]), rest.substr(kHeader + sizes[0], sizes[1]));
    rest.remove_prefix(whole);
    replayed_ += static_cast<std::int64_t>(whole);
  }
}

void FileStore::write(std::string_view records) {
  // Whatever lies behind the last whole record was left by a writer that died.
  if (::ftruncate(file_.value(), replayed_) != 0) throw_errno("store", fmt::format("cannot write {}", quoted(path_)));
  for (auto at = replayed_; !records.empty();) {
    const auto written = ::pwrite(file_.value(), records.data(), records.size(), at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno("store", fmt::format("cannot write {}", quoted(path_)));
    records.remove_prefix(static_cast<std::size_t>(written));
    at += written;
  }
  catch_up();
}

void FileStore::change(Change change, std::string_view key, std::string_view value) {
  std::string record;
  encode(record, change, user_key(key), value);
  const FileLock lock(*this, LOCK_EX);
  write(record);
}

void FileStore::set(std::string_view key, std::string_view value) { change(Change::set, key, value); }
void FileStore::append(std::string_view key, std::string_view value) { change(Change::append, key, value); }
void FileStore::queue_push(std::string_view key, std::string_view value) { change(Change::push, key, value); }

std::string FileStore::value_of(std::string_view key) const {
  const auto* value = space_.find(user_key(key));
  return value ? *value : std::string();
}

std::string FileStore::get(std::string_view key, Duration timeout) {
  const std::string wanted(key);
  wait({&wanted, 1}, timeout);
  const FileLock lock(*this, LOCK_SH);
  return value_of(key);
}

std::int64_t FileStore::add(std::string_view key, std::int64_t delta) {
  const FileLock lock(*this, LOCK_EX);
  const auto* before = space_.find(user_key(key));
  const auto number = before ? leading_number(*before) : 0;
  if (!number) throw RendezvousError("store", fmt::format("add to {}: its value is not a number", quoted(key)));
  const auto sum = wrapping_sum(*number, delta);
  std::string record;
  encode(record, Change::set, user_key(key), std::to_string(sum));
  write(record);
  return sum;
}

std::string FileStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  const FileLock lock(*this, LOCK_EX);
  const auto* now = space_.find(user_key(key));
  if (!now && !expected.empty()) return std::string(expected);
  if (now && *now != expected) return *now;
  std::string record;
  encode(record, Change::set, user_key(key), desired);
  write(record);
  return std::string(desired);
}

bool FileStore::check(std::span<const std::string> keys) {
  const FileLock lock(*this, LOCK_SH);
  for (const auto& key : keys) {
    if (!space_.exists(user_key(key))) return false;
  }
  return true;
}

void FileStore::wait(std::span<const std::string> keys, Duration timeout) {
  const auto deadline = Deadline::after(timeout);
  while (!check(keys)) {
    if (deadline.passed()) {
      throw TimeoutError("store", fmt::format("timed out after {} ms waiting for {} in {}", timeout.count(),
                                              quoted_list(keys), quoted(path_)));
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(kLookAgain, deadline.remaining()));
  }
}

std::int64_t FileStore::num_keys() {
  const FileLock lock(*this, LOCK_SH);
  return static_cast<std::int64_t>(space_.size() - (space_.find(kLeft) ? 1 : 0));
}

bool FileStore::delete_key(std::string_view key) {
  const FileLock lock(*this, LOCK_EX);
  if (!space_.find(user_key(key))) return false;
  std::string record;
  encode(record, Change::erase, user_key(key), {});
  write(record);
  return true;
}

std::vector<std::string> FileStore::multi_get(std::span<const std::string> keys, Duration timeout) {
  wait(keys, timeout);
  const FileLock lock(*this, LOCK_SH);
  std::vector<std::string> values;
  for (const auto& key : keys) values.push_back(value_of(key));
  return values;
}

void FileStore::multi_set(std::span<const std::pair<std::string, std::string>> items) {
  std::string records;
  for (const auto& [key, value] : items) encode(records, Change::set, user_key(key), value);
  const FileLock lock(*this, LOCK_EX);
  write(records);
}

std::string FileStore::queue_pop(std::string_view key, Duration timeout) {
  const auto deadline = Deadline::after(timeout);
  for (;;) {
    {
      const FileLock lock(*this, LOCK_EX);
      if (const auto* front = space_.queue_front(user_key(key))) {
        auto value = *front;
        std::string record;
        encode(record, Change::pop, user_key(key), {});
        // Replaying the record takes it out of the copy.
        write(record);
        return value;
      }
    }
    if (deadline.passed()) {
      throw TimeoutError("store", fmt::format("timed out after {} ms: queue {} in {} stayed empty", timeout.count(),
                                              quoted(key), quoted(path_)));
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(kLookAgain, deadline.remaining()));
  }
}

std::int64_t FileStore::queue_length(std::string_view key) {
  const FileLock lock(*this, LOCK_SH);
  return static_cast<std::int64_t>(space_.queue_length(user_key(key)));
}

std::vector<std::string> FileStore::list_keys() {
  const FileLock lock(*this, LOCK_SH);
  std::vector<std::string> keys;
  space_.for_each_key([&](std::string_view key) {
    if (key.starts_with('/')) keys.emplace_back(key.substr(1));
  });
  return keys;
}

void FileStore::barrier(std::string_view key, std::int64_t world_size, Duration timeout) {
  const auto deadline = Deadline::after(timeout);
  for (auto arrived = add(key, 1); arrived < world_size;) {
    if (deadline.passed()) {
      throw TimeoutError("store", fmt::format("timed out after {} ms at barrier {}: {} of {} arrived", timeout.count(),
                                              quoted(key), arrived, world_size));
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(kLookAgain, deadline.remaining()));
    const FileLock lock(*this, LOCK_SH);
    arrived = leading_number(value_of(key)).value_or(world_size);
  }
}

}  // namespace dtrun::rendezvous
