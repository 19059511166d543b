#include "rendezvous/coordinator/coordinator_server.hpp"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>

#include <utility>

#include "rendezvous/base/endpoint.hpp"
#include "rendezvous/base/listener.hpp"

namespace dtrun::rendezvous {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Out of descriptors: how soon to look again.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

}  // namespace

CoordinatorServer::CoordinatorServer(asio::io_context& io, JobRules rules, const std::string& host, std::uint16_t port,
                                     Callbacks callbacks, std::optional<JobToken> token)
    : io_(io),
      connection_limit_(static_cast<std::size_t>(rules.max_nodes) * 2 + 64),
      coordinator_(rules, Clock::now()),
      callbacks_(std::move(callbacks)),
      entrance_(
          io, token, {static_cast<std::size_t>(rules.max_nodes) + 64, rules.dead_after},
          [this](Admitted admitted) { admit(std::move(admitted)); }, callbacks_.note),
      acceptor_(io),
      timer_(io),
      pause_(io) {
  auto listener = listen_on(host, port, "rendezvous");
  port_ = listener.port;
  acceptor_.assign(listener.host.find(':') == std::string::npos ? tcp::v4() : tcp::v6(), listener.fd.release());
  if (!token && !is_loopback_host(listener.host)) {
    warning_ = fmt::format("anybody who reaches {} can join this job: --rdzv-token-file FILE on every node prevents it",
                           Endpoint{listener.host, port_}.to_string());
  }
  accept();
  arm_timer();
}

CoordinatorServer::~CoordinatorServer() {
  for (auto& [id, peer] : peers_) peer.stream->finish();
}

void CoordinatorServer::accept() {
  acceptor_.async_accept(
      [this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error, tcp::socket socket) {
        if (alive.expired() || error == asio::error::operation_aborted) return;
        if (!error) {
          entrance_.add(std::move(socket));
          return accept();
        }
        if (error != asio::error::no_descriptors && error != asio::error::no_memory &&
            error != asio::error::no_buffer_space)
          return accept();
        pause_.expires_after(kAcceptPause);
        pause_.async_wait([this, alive](const boost::system::error_code&) {
          if (!alive.expired()) accept();
        });
      });
}

void CoordinatorServer::admit(Admitted admitted) {
  if (peers_.size() >= connection_limit_) {
    admitted.stream->send(encode(ToAgent(Refuse{"this job has too many agents already", false})));
    return admitted.stream->finish();
  }
  const auto id = ++next_id_;
  peers_[id] = {admitted.stream, admitted.address};
  const auto alive = std::weak_ptr(alive_);
  admitted.stream->pass_to({[this, alive, id](std::string_view message) {
                              if (!alive.expired()) hear(id, message);
                            },
                            [this, alive, id](const std::string& why) {
                              if (!alive.expired()) lose(id, why);
                            }});
  step(AgentConnected{id});
  if (!admitted.first) return;
  ++messages_;
  step(AgentSaid{id, std::move(*admitted.first)});
}

void CoordinatorServer::hear(std::uint64_t id, std::string_view message) {
  ++messages_;
  step(AgentSaid{id, decode_to_coordinator(message)});
}

void CoordinatorServer::lose(std::uint64_t id, const std::string& why) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  if (why != kConnectionEnded && callbacks_.note) callbacks_.note(fmt::format("{}: {}", found->second.address, why));
  peers_.erase(found);
  step(AgentGone{id});
}

std::string CoordinatorServer::reached_at() const {
  for (const auto& [id, peer] : peers_) {
    auto address = peer.stream->local_address();
    if (!address.empty() && !is_loopback_host(address)) return address;
  }
  return {};
}

void CoordinatorServer::host_stops(Verdict verdict) { step(HostStops{std::move(verdict)}); }

void CoordinatorServer::step(const CoordinatorEvent& event) {
  for (const auto& effect : coordinator_.step(event, Clock::now())) {
    if (const auto* send = std::get_if<SendTo>(&effect)) {
      const auto peer = peers_.find(send->agent);
      if (peer == peers_.end()) continue;
      ++messages_;
      peer->second.stream->send(encode(send->message));
    } else if (const auto* close = std::get_if<CloseAgent>(&effect)) {
      const auto peer = peers_.find(close->agent);
      if (peer == peers_.end()) continue;
      peer->second.stream->finish();
      peers_.erase(peer);
    } else if (callbacks_.note) {
      callbacks_.note(std::get<Note>(effect).text);
    }
  }
  arm_timer();
  if (coordinator_.over() && !std::exchange(told_over_, true) && callbacks_.over) callbacks_.over();
}

void CoordinatorServer::arm_timer() {
  const auto at = coordinator_.next_deadline();
  if (at == timer_at_) return;
  timer_at_ = at;
  if (at == Clock::time_point::max()) {
    timer_.cancel();
    return;
  }
  timer_.expires_at(at);
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
    if (error || alive.expired()) return;
    timer_at_ = Clock::time_point::max();
    step(TimePassed{});
  });
}

}  // namespace dtrun::rendezvous
