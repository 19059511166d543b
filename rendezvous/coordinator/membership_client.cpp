#include "rendezvous/coordinator/membership_client.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <utility>

#include "rendezvous/contract/exit_codes.hpp"

namespace dtrun::rendezvous {

MembershipClient::MembershipClient(boost::asio::io_context& io, Hello hello, Endpoint coordinator,
                                   std::chrono::milliseconds join_budget, MembershipOrders orders,
                                   std::optional<JobToken> token)
    : io_(io),
      join_budget_(join_budget),
      orders_(std::move(orders)),
      member_(hello),
      link_(io, std::move(coordinator),
            {[this] {
               member_.reachable_at(link_.local_address());
               step(Connected{});
             },
             [this](const ToAgent& message) { step(CoordinatorSaid{message}); },
             [this](const std::string& why) { step(ConnectionLost{"the coordinator is lost: " + why}); },
             [this](const std::string& why) {
               exit({kExitInfrastructure, why, "", -1});
             }},
            hello.job, std::move(token)),
      timer_(io) {}

void MembershipClient::join() { link_.connect(Deadline::after(join_budget_), false); }

void MembershipClient::step(const MemberEvent& event) {
  if (exited_) return;
  for (const auto& effect : member_.step(event, Clock::now())) carry_out(effect);
  arm_timer();
}

void MembershipClient::carry_out(const MemberEffect& effect) {
  if (const auto* say = std::get_if<Say>(&effect)) {
    link_.say(say->message);
  } else if (const auto* open = std::get_if<OpenStore>(&effect)) {
    later([this, epoch = open->epoch] { orders_.open_store(epoch); });
  } else if (const auto* start = std::get_if<StartWorkers>(&effect)) {
    later([this, order = *start] { orders_.start_workers(order.place, order.start); });
  } else if (const auto* stop = std::get_if<StopWorkers>(&effect)) {
    later([this, order = *stop] { orders_.stop_workers(order); });
  } else if (const auto* waiting = std::get_if<ShowWaiting>(&effect)) {
    later([this, shown = waiting->waiting] { orders_.waiting(shown); });
  } else if (const auto* over = std::get_if<ShowStop>(&effect)) {
    if (orders_.another_round) later([this, why = over->why] { orders_.another_round(why); });
  } else if (std::holds_alternative<Reconnect>(effect)) {
    link_.connect(Deadline::after(join_budget_), true);
  } else {
    exit(std::get<Exit>(effect).verdict);
  }
}

void MembershipClient::later(std::function<void()> what) {
  boost::asio::post(io_, [this, alive = std::weak_ptr(alive_), what = std::move(what)] {
    if (!alive.expired() && !exited_) what();
  });
}

void MembershipClient::exit(const Verdict& verdict) {
  if (std::exchange(exited_, true)) return;
  timer_.cancel();
  link_.finish();
  boost::asio::post(io_, [this, alive = std::weak_ptr(alive_), verdict] {
    if (!alive.expired()) orders_.exit(verdict);
  });
}

void MembershipClient::arm_timer() {
  const auto at = exited_ ? Clock::time_point::max() : member_.next_deadline();
  if (at == timer_at_) return;
  timer_at_ = at;
  timer_.cancel();
  if (at == Clock::time_point::max()) return;
  timer_.expires_at(at);
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
    if (error || alive.expired()) return;
    timer_at_ = Clock::time_point::max();
    step(Tick{});
  });
}

}  // namespace dtrun::rendezvous
