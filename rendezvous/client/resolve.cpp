#include "rendezvous/client/resolve.hpp"

#include <fmt/format.h>
#include <netdb.h>

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

namespace dtrun::rendezvous {
namespace {

Resolved ask_system(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  Resolved result;
  if (error != 0) {
    result.failure = ::gai_strerror(error);
    // A node's name often appears some time after its job starts.
    result.worth_retrying = error == EAI_AGAIN || error == EAI_NONAME || error == EAI_SYSTEM || error == EAI_NODATA;
    return result;
  }
  for (const auto* at = found; at; at = at->ai_next) {
    auto& address = result.addresses.emplace_back();
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
    address.size = at->ai_addrlen;
  }
  ::freeaddrinfo(found);
  return result;
}

// Shared by the caller and the thread; whoever is last frees it.
struct Question {
  std::mutex mutex;
  std::condition_variable answered;
  bool done = false;
  Resolved answer;
};

}  // namespace

Resolved resolve(const std::string& host, std::uint16_t port, Deadline deadline) {
  auto numeric = ask_system(host == "localhost" ? "127.0.0.1" : host, port, AI_NUMERICHOST);
  if (!numeric.addresses.empty()) return numeric;
  const auto question = std::make_shared<Question>();
  std::thread([question, host, port] {
    auto answer = ask_system(host, port, 0);
    const std::lock_guard lock(question->mutex);
    question->answer = std::move(answer);
    question->done = true;
    question->answered.notify_one();
  }).detach();
  std::unique_lock lock(question->mutex);
  if (question->answered.wait_until(lock, deadline.at(), [&] { return question->done; }))
    return std::move(question->answer);
  Resolved late;
  late.failure = "the name server did not answer in time";
  late.worth_retrying = true;
  return late;
}

}  // namespace dtrun::rendezvous
