// Those who are told about changes of a KeySpace: a Waiter once, when all its keys exist; a Watcher at every change of
// a key.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dtrun::rendezvous {

// One blocked WAIT or BARRIER. Owned by whoever waits (a server session, a stack frame), who cancels it before it goes
// away.
class Waiter {
 public:
  Waiter() = default;
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  bool waiting() const { return missing_ > 0; }
  // A queue element is put by for it: see KeySpace::settle().
  bool granted() const { return granted_; }

 protected:
  virtual ~Waiter();
  // Everything has arrived. Runs inside the change that did it; must not call the KeySpace.
  virtual void woken() = 0;

 private:
  friend class KeySpace;
  struct Link;
  // The waiters of one key, oldest first.
  struct List {
    Link* first = nullptr;
    Link* last = nullptr;
  };
  struct Link {
    Waiter* waiter = nullptr;
    Link* before = nullptr;
    Link* after = nullptr;
    std::pair<const std::string, List>* list = nullptr;
    bool barrier = false;
  };

  // Links of keys that have arrived have list == nullptr. `one_` spares the allocation for waits on a single key.
  Link one_;
  std::vector<Link> many_;
  std::size_t missing_ = 0;
  // The queue whose push woke it, until it pops from there or does something else.
  std::string granted_queue_;
  bool granted_ = false;
};

// A WATCH_KEY connection.
class Watcher {
 public:
  Watcher() = default;
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  std::size_t watched() const { return keys_.size(); }

 protected:
  virtual ~Watcher() = default;
  // `kind` is kUpdated, kCreated or kDeleted. Must not call the KeySpace.
  virtual void changed(char kind, std::string_view key, std::string_view before, std::string_view now) = 0;

 public:
  // The wire's bytes for WATCH_KEY.
  static constexpr char kUpdated = 0, kCreated = 1, kDeleted = 2;

 private:
  friend class KeySpace;
  std::vector<std::string> keys_;
};

}  // namespace dtrun::rendezvous
