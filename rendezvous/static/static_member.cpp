#include "rendezvous/static/static_member.hpp"

#include <signal.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <condition_variable>
#include <deque>
#include <thread>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "rendezvous/server/store_server.hpp"

namespace dtrun::rendezvous {
namespace {

using namespace std::chrono_literals;

// For the helper thread to come back from a call that was ended.
constexpr auto kStopTime = 1s;
// For the others to take the end of the barrier from node 0's store and to close their connections.
constexpr auto kLingerTime = 5s;
constexpr auto kFailedLingerTime = 2s;

}  // namespace

// What the event loop's thread and the helper share.
struct StaticMember::Line {
  Line(boost::asio::io_context& io, const StaticJob& job, const StaticOrders& orders, const std::shared_ptr<int>& alive)
      : session(job, [this](const std::string& text) { post([text](const StaticOrders& told) { told.note(text); }); }),
        orders_(orders),
        alive_(alive),
        io_(&io) {}

  // From the helper: `news` happens on the event loop, unless nobody is there any more.
  void post(std::function<void(const StaticOrders&)> news) {
    const std::lock_guard lock(mutex_);
    if (io_ == nullptr) return;
    // With orders of their own: the one who is called may take the member down.
    boost::asio::post(*io_, [orders = orders_, news = std::move(news), alive = alive_] {
      if (!alive.expired()) news(orders);
    });
  }

  void order(std::function<void(StaticSession&)> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopped_ || !jobs_.empty(); });
      if (jobs_.empty()) break;
      const auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job(session);
      lock.lock();
    }
    lock.unlock();
    session.close();
    lock.lock();
    finished_ = true;
    changed_.notify_all();
  }

  // No news from here on. What runs is ended; `last` is still done.
  void stop(std::function<void(StaticSession&)> last) {
    session.cancel();
    const std::lock_guard lock(mutex_);
    io_ = nullptr;
    stopped_ = true;
    jobs_.clear();
    if (last) jobs_.push_back(std::move(last));
    changed_.notify_all();
  }

  void end_thread() {
    if (!thread.joinable()) return;
    std::unique_lock lock(mutex_);
    const bool back = changed_.wait_for(lock, kStopTime, [&] { return finished_; });
    lock.unlock();
    if (back) {
      thread.join();
    } else {
      thread.detach();
    }
  }

  StaticSession session;  // the helper's, but for cancel()
  std::thread thread;

 private:
  const StaticOrders orders_;
  const std::weak_ptr<int> alive_;  // the member, which ends on the event loop's thread
  boost::asio::io_context* io_;     // none once the member has left
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void(StaticSession&)>> jobs_;  // at most a few: one for each call of the member
  bool stopped_ = false, finished_ = false;
};

StaticMember::StaticMember(boost::asio::io_context& io, StaticJob job, StaticOrders orders)
    : io_(io), job_(std::move(job)), orders_(std::move(orders)), timer_(io) {}

StaticMember::~StaticMember() {
  leave(0);
  if (line_) line_->end_thread();
}

std::uint16_t StaticMember::port() const { return server_ ? server_->port() : std::uint16_t{0}; }

void StaticMember::join() {
  store_at_ = job_.endpoint;
  if (job_.node == 0) open_store();
  line_ = std::make_shared<Line>(io_, job_, orders_, alive_);
  line_->order([this, line = line_.get(), store = store_at_, remark = remark_](StaticSession& session) {
    line->post([this, outcome = session.join(store, remark)](const StaticOrders& orders) {
      if (const auto* failure = std::get_if<StaticFailure>(&outcome)) return orders.failed(*failure);
      place_ = std::get<StaticPlace>(outcome);
      beat_later();
      orders.placed(*place_);
    });
  });
  // Signals are the event loop's.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  line_->thread = std::thread([line = line_] { line->work(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// The endpoint names this node for the others. Where that is not an address of this machine (a service address, a
// forwarded port), or is one that only this machine can reach (Debian gives 127.0.1.1 to a host's own name), the store
// is on every interface.
void StaticMember::open_store() {
  StoreServerOptions options;
  options.host = job_.endpoint.host;
  options.port = job_.endpoint.port;
  bool everywhere = false;
  try {
    server_ = std::make_unique<StoreServer>(io_, options);
    everywhere = is_loopback_host(server_->host()) && !is_loopback_host(options.host);
  } catch (const UsageError&) {
    everywhere = true;
  }
  if (everywhere) {
    remark_ = "; " + options.host + " is no outside address of this machine: all its addresses are listened on";
    server_.reset();
    options.host = options.host.find(':') == std::string::npos ? "0.0.0.0" : "::";
    server_ = std::make_unique<StoreServer>(io_, options);
  }
  const auto own = !everywhere ? server_->host() : options.host == "::" ? "::1" : "127.0.0.1";
  store_at_ = {own, server_->port()};
}

void StaticMember::again() {
  line_->order([this, line = line_.get()](StaticSession& session) {
    line->post([this, gone = session.beat()](const StaticOrders& orders) {
      gone ? orders.failed(*gone) : orders.placed(*place_);
    });
  });
}

// The others learn from it that this node lives while its workers run, and it learns whether node 0 does: its workers
// may not need node 0 and go on, but the job will not end well.
void StaticMember::beat_later() {
  if (job_.node == 0) return;
  timer_.expires_after(job_.beat_every);
  timer_.async_wait([this, alive = std::weak_ptr<int>(alive_)](const boost::system::error_code& error) {
    if (error || alive.expired() || in_barrier_) return;
    line_->order([this, line = line_.get()](StaticSession& session) {
      line->post([this, gone = session.beat()](const StaticOrders& orders) {
        if (in_barrier_) return;
        if (!gone) return beat_later();
        orders.note(gone->why + "; the workers here go on, this node ends with exit code 75");
      });
    });
  });
}

void StaticMember::succeeded() {
  in_barrier_ = true;
  timer_.cancel();
  line_->order([this, line = line_.get()](StaticSession& session) {
    const auto failure = session.barrier();
    session.close();
    line->post([this, failure](const StaticOrders& orders) {
      auto then = failure ? std::function<void()>([call = orders.failed, failure] { call(*failure); }) : orders.over;
      if (!server_) return then();
      linger(Clock::now() + (failure ? kFailedLingerTime : kLingerTime), std::move(then));
    });
  });
}

void StaticMember::linger(Clock::time_point until, std::function<void()> then) {
  if (server_->connections() == 0 || Clock::now() >= until) return then();
  timer_.expires_after(5ms);
  timer_.async_wait([this, until, then = std::move(then),
                     alive = std::weak_ptr<int>(alive_)](const boost::system::error_code& error) {
    if (!error && !alive.expired()) linger(until, then);
  });
}

void StaticMember::leave(int exit_code) {
  if (!alive_) return;
  alive_.reset();
  timer_.cancel();
  if (line_) {
    std::function<void(StaticSession&)> tell;
    if (exit_code > 0 && place_ && job_.node != 0) {
      tell = [node = job_.node, exit_code](StaticSession& session) { session.tell_failure(node, exit_code); };
    }
    line_->stop(std::move(tell));
  }
  server_.reset();
}

}  // namespace dtrun::rendezvous
