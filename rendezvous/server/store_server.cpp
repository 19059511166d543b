#include "rendezvous/server/store_server.hpp"

#include <sys/socket.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/log.hpp"
#include "rendezvous/base/listener.hpp"
#include "rendezvous/server/session.hpp"

namespace dtrun::rendezvous {
namespace {

constexpr std::size_t kEventsPerRound = 256;
// Rounds before the other work of the io_context gets its turn.
constexpr int kRoundsPerTurn = 16;
constexpr int kAcceptsPerEvent = 64;
// Out of descriptors: how soon to look again when none of ours was closed.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

}  // namespace

// Owns the sockets. Each turn: take what epoll reports, let sessions work, send what they woke, bury those that failed.
class StoreServer::Daemon : public std::enable_shared_from_this<Daemon> {
 public:
  Daemon(boost::asio::io_context& io, const StoreServerOptions& options)
      : listener_(listen_on(options.host, options.port, "store")), ready_(io), timer_(io) {
    context_.limits = options.limits;
    context_.serve_1x = options.serve_1x;
    if (!context_.serve_1x) context_.limits.silent_connections = 0;
    if (!context_.poller.add(listener_.fd.value(), EPOLLIN, &listener_)) throw_errno("store", "epoll_ctl");
    // The descriptor object only watches: release() at close keeps it from closing the poller's own.
    ready_.assign(context_.poller.fd());
  }

  void start() { await_events(); }
  const Listener& listener() const { return listener_; }
  std::size_t sessions() const { return sessions_.size(); }

  void close() {
    if (closed_) return;
    closed_ = true;
    timer_.cancel();
    ready_.release();
    listener_.fd.reset();
    for (auto& session : sessions_) session->fail({});
    context_.failed.clear();
    sessions_.clear();
  }

 private:
  void await_events() {
    ready_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [self = shared_from_this()](const boost::system::error_code& error) {
                        if (error || self->closed_) return;
                        self->turn();
                        self->await_events();
                      });
  }

  void turn() {
    for (int round = 0; round < kRoundsPerTurn; ++round) {
      const auto events = context_.poller.ready(events_);
      if (events.empty()) break;
      now_ = Clock::now();
      for (const auto& event : events) dispatch(event);
      finish_round();
      // One busy client cannot have asked again yet; several may have.
      if (events.size() == 1) break;
    }
    arm_timer();
  }

  void dispatch(const epoll_event& event) {
    if (event.data.ptr == &listener_) return accept();
    auto& session = *static_cast<Session*>(event.data.ptr);
    if (session.failed()) return;
    if (event.events & EPOLLOUT) session.flush();
    if ((event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) && !session.failed()) session.receive(now_);
  }

  void finish_round() {
    // Flushing can fail a session, and burying one can wake another.
    while (!context_.unflushed.empty() || !context_.failed.empty()) {
      flushing_.swap(context_.unflushed);
      for (auto* session : flushing_) {
        if (!session->failed()) session->flush();
      }
      flushing_.clear();
      burying_.swap(context_.failed);
      for (auto* session : burying_) bury(*session);
      burying_.clear();
    }
  }

  // fail() has unregistered it everywhere; only the list of sessions to flush may still name it.
  void bury(Session& session) {
    std::erase(context_.unflushed, &session);
    const auto index = session.index;
    sessions_[index].swap(sessions_.back());
    sessions_[index]->index = index;
    sessions_.pop_back();
    if (accept_paused_) resume_accepting();
  }

  void accept() {
    for (int i = 0; i < kAcceptsPerEvent; ++i) {
      UniqueFd socket(::accept4(listener_.fd.value(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) pause_accepting(errno);
        if (errno == ECONNABORTED || errno == EINTR) continue;
        return;
      }
      if (sessions_.size() >= context_.limits.connections) continue;
      sessions_.push_back(std::make_unique<Session>(context_, std::move(socket), now_));
      sessions_.back()->index = sessions_.size() - 1;
    }
  }

  // The listener stays readable: without this the loop would spin.
  void pause_accepting(int error) {
    if (!said_out_of_descriptors_) {
      log::warning("store", "cannot accept more than {} clients now ({}); accepting again when descriptors are free",
                   sessions_.size(), std::generic_category().message(error));
      said_out_of_descriptors_ = true;
    }
    accept_paused_ = true;
    accept_again_ = now_ + kAcceptPause;
    context_.poller.modify(listener_.fd.value(), 0, &listener_);
  }

  void resume_accepting() {
    accept_paused_ = false;
    context_.poller.modify(listener_.fd.value(), EPOLLIN, &listener_);
  }

  // One timer for all sessions, set for the first of them that runs out of time. A later arrival never needs an earlier
  // one, except after all lists were empty.
  void arm_timer() {
    auto at = Clock::time_point::max();
    if (accept_paused_) at = accept_again_;
    if (!context_.opening.empty()) at = std::min(at, context_.opening.oldest_since() + context_.limits.handshake);
    if (!context_.partial.empty()) at = std::min(at, context_.partial.oldest_since() + context_.limits.partial_request);
    if (at == Clock::time_point::max() || (timer_armed_ && timer_at_ <= at)) return;
    timer_armed_ = true;
    timer_at_ = at;
    timer_.expires_at(at);
    timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (error || self->closed_) return;
      self->timer_armed_ = false;
      self->sweep();
      self->arm_timer();
    });
  }

  void sweep() {
    now_ = Clock::now();
    if (accept_paused_ && now_ >= accept_again_) resume_accepting();
    auto& opening = context_.opening;
    auto& silent = context_.silent;
    auto& partial = context_.partial;
    while (!opening.empty() && opening.oldest_since() + context_.limits.handshake <= now_) {
      auto& session = static_cast<Session&>(opening.oldest());
      if (session.silent()) {
        silent.join(session, now_);
      } else {
        session.fail("sent no whole opening in time");
      }
    }
    while (silent.size() > context_.limits.silent_connections + context_.sessions_1x) {
      static_cast<Session&>(silent.oldest()).fail("sent nothing, and many connections are silent");
    }
    while (!partial.empty() && partial.oldest_since() + context_.limits.partial_request <= now_) {
      static_cast<Session&>(partial.oldest()).fail("stopped in the middle of a request");
    }
    finish_round();
  }

  // Destroyed last: sessions leave its lists when they go.
  SessionContext context_;
  Listener listener_;
  boost::asio::posix::stream_descriptor ready_;
  boost::asio::steady_timer timer_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::array<epoll_event, kEventsPerRound> events_{};
  std::vector<Session*> flushing_, burying_;
  Clock::time_point now_ = Clock::now(), accept_again_, timer_at_;
  bool timer_armed_ = false, accept_paused_ = false, said_out_of_descriptors_ = false, closed_ = false;
};

StoreServer::StoreServer(boost::asio::io_context& io, StoreServerOptions options)
    : daemon_(std::make_shared<Daemon>(io, options)) {
  daemon_->start();
}

StoreServer::~StoreServer() { close(); }

std::string StoreServer::host() const { return daemon_->listener().host; }
std::uint16_t StoreServer::port() const { return daemon_->listener().port; }
std::size_t StoreServer::connections() const { return daemon_->sessions(); }
void StoreServer::close() { daemon_->close(); }

}  // namespace dtrun::rendezvous
