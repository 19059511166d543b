#include "rendezvous/coordinator/name_lookup.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <mutex>
#include <thread>
#include <utility>

namespace dtrun::rendezvous {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

NameLookup::Addresses endpoints_of(const addrinfo* list) {
  NameLookup::Addresses result;
  for (const auto* entry = list; entry != nullptr; entry = entry->ai_next) {
    tcp::endpoint endpoint;
    if (entry->ai_addrlen > endpoint.capacity()) continue;
    ::memcpy(endpoint.data(), entry->ai_addr, entry->ai_addrlen);
    endpoint.resize(entry->ai_addrlen);
    result.push_back(endpoint);
  }
  return result;
}

// Returns getaddrinfo's error.
int ask_system(const Endpoint& wanted, int flags, NameLookup::Addresses& addresses) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const auto port = std::to_string(wanted.port);
  const int error = ::getaddrinfo(wanted.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) return error;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, ::freeaddrinfo);
  addresses = endpoints_of(found);
  return 0;
}

std::string problem_of(const std::string& host, int error) {
  if (error == 0) return {};
  return fmt::format("the name {} is not known{}", host,
                     error == EAI_AGAIN                         ? ": no answer from a name server"
                     : error == EAI_NONAME || error == EAI_FAIL ? ""
                                                                : std::string(": ") + ::gai_strerror(error));
}

}  // namespace

struct NameLookup::Query {
  const Endpoint wanted;
  std::mutex mutex;
  std::function<void()> tell;  // posts to the event loop; empty when nobody is interested any more
  bool answered = false;
  int error = 0;
  Addresses addresses;

  explicit Query(Endpoint endpoint) : wanted(std::move(endpoint)) {}
  void run() {
    Addresses found;
    const int result = ask_system(wanted, 0, found);
    const std::lock_guard lock(mutex);
    answered = true;
    error = result;
    addresses = std::move(found);
    if (tell) tell();
  }
};

NameLookup::NameLookup(asio::io_context& io) : io_(io), timer_(io) {}

NameLookup::~NameLookup() {
  if (!query_) return;
  const std::lock_guard lock(query_->mutex);
  query_->tell = nullptr;
}

void NameLookup::start(const Endpoint& wanted, std::chrono::milliseconds limit, Done done) {
  done_ = std::move(done);
  Addresses numeric;
  const bool local = wanted.host == "localhost";
  if (ask_system(local ? Endpoint{"127.0.0.1", wanted.port} : wanted, AI_NUMERICHOST, numeric) == 0) {
    asio::post(io_, [this, alive = std::weak_ptr(alive_), numeric = std::move(numeric)] {
      if (!alive.expired()) finish("", numeric);
    });
    return;
  }
  timer_.expires_after(limit);
  timer_.async_wait([this, alive = std::weak_ptr(alive_), host = wanted.host](const boost::system::error_code& error) {
    if (!error && !alive.expired()) finish(problem_of(host, EAI_AGAIN), {});
  });
  // An earlier question that is still open is asked only once.
  if (query_) {
    const std::lock_guard lock(query_->mutex);
    if (!query_->answered && query_->wanted == wanted) return;
    query_->tell = nullptr;
  }
  query_ = std::make_shared<Query>(wanted);
  query_->tell = [this, alive = std::weak_ptr(alive_), query = std::weak_ptr(query_)] {
    asio::post(io_, [this, alive, query] {
      const auto answered = query.lock();
      if (!alive.expired() && answered) look_at(answered);
    });
  };
  // Signals are the event loop's.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([query = query_] { query->run(); }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void NameLookup::look_at(const std::shared_ptr<Query>& query) {
  if (query != query_) return;
  finish(problem_of(query->wanted.host, query->error), query->addresses);
}

void NameLookup::cancel() {
  timer_.cancel();
  done_ = nullptr;
}

void NameLookup::finish(const std::string& problem, const Addresses& addresses) {
  timer_.cancel();
  if (const auto done = std::exchange(done_, nullptr)) done(problem, addresses);
}

}  // namespace dtrun::rendezvous
