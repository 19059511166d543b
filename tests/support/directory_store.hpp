// A Store for tests that threads and processes share: one file per key, get() polls. Only what setting up groups needs.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/store/store.hpp"

namespace dtrun::test {

class DirectoryStore : public rendezvous::Store {
 public:
  explicit DirectoryStore(std::filesystem::path directory) : directory_(std::move(directory)) {}

  void set(std::string_view key, std::string_view value) override {
    static std::atomic<int> number{0};
    const auto temporary = directory_ / ("tmp." + std::to_string(::getpid()) + "." + std::to_string(number++));
    std::ofstream(temporary, std::ios::binary) << value;
    std::filesystem::rename(temporary, path(key));
  }
  std::string get(std::string_view key, Duration timeout) override {
    const auto deadline = Deadline::after(timeout);
    for (;;) {
      std::ifstream in(path(key), std::ios::binary);
      if (in) return {std::istreambuf_iterator<char>(in), {}};
      if (deadline.passed()) throw TimeoutError("store", "key \"" + std::string(key) + "\" is missing");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::int64_t add(std::string_view, std::int64_t) override { missing(); }
  std::string compare_set(std::string_view, std::string_view, std::string_view) override { missing(); }
  bool check(std::span<const std::string> keys) override {
    for (const auto& key : keys) {
      if (!std::filesystem::exists(path(key))) return false;
    }
    return true;
  }
  void wait(std::span<const std::string>, Duration) override { missing(); }
  std::int64_t num_keys() override { missing(); }
  bool delete_key(std::string_view key) override { return std::filesystem::remove(path(key)); }
  void append(std::string_view, std::string_view) override { missing(); }
  std::vector<std::string> multi_get(std::span<const std::string>, Duration) override { missing(); }
  void multi_set(std::span<const std::pair<std::string, std::string>>) override { missing(); }
  void queue_push(std::string_view, std::string_view) override { missing(); }
  std::string queue_pop(std::string_view, Duration) override { missing(); }
  std::int64_t queue_length(std::string_view) override { missing(); }
  std::vector<std::string> list_keys() override { missing(); }
  void barrier(std::string_view, std::int64_t, Duration) override { missing(); }

 private:
  [[noreturn]] static void missing() {
    throw std::logic_error("DirectoryStore has set, get, check and delete_key only");
  }
  std::filesystem::path path(std::string_view key) const {
    std::string name = "key.";
    for (const char letter : key) name += letter == '/' ? '_' : letter;
    return directory_ / name;
  }
  std::filesystem::path directory_;
};

}  // namespace dtrun::test
