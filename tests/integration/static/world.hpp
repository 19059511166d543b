// Nodes of the static backend in one event loop, over real sockets: a helper thread for each node.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/listener.hpp"
#include "rendezvous/static/static_member.hpp"

namespace dtrun::tests {

using namespace rendezvous;
using namespace std::chrono_literals;

inline StaticJob job(int node, int nodes, std::uint16_t port) {
  StaticJob job;
  job.run_id = "job";
  job.node = node;
  job.nodes = nodes;
  job.self = {"default", 1};
  job.endpoint = {"127.0.0.1", port};
  job.join_timeout = 10s;
  job.status_every = 100ms;
  job.beat_every = 100ms;
  job.dead_after = 1s;
  job.barrier_limit = 1500ms;
  return job;
}

struct World;

struct Node {
  Node(World& world, StaticJob job);
  std::optional<StaticPlace> place;
  std::vector<std::string> lines;
  std::optional<StaticFailure> failure;
  bool over = false;
  std::unique_ptr<StaticMember> member;
  bool said(std::string_view part) const {
    return std::any_of(lines.begin(), lines.end(),
                       [&](const auto& line) { return line.find(part) != std::string::npos; });
  }
};

struct World {
  boost::asio::io_context io;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard{io.get_executor()};
  std::vector<std::unique_ptr<Node>> nodes;
  std::uint16_t port = 0;

  // Node 0 first: it chooses the port.
  Node& add(StaticJob job) {
    if (job.endpoint.port == 0) job.endpoint.port = port;
    nodes.push_back(std::make_unique<Node>(*this, std::move(job)));
    nodes.back()->member->join();
    if (port == 0) port = nodes.back()->member->port();
    return *nodes.back();
  }
  template <class Condition>
  bool until(Condition condition, Clock::duration limit = 10s) {
    const Deadline deadline = Deadline::after(limit);
    while (!condition() && !deadline.passed()) io.run_one_for(20ms);
    return condition();
  }
  bool all_placed() {
    return until([&] { return std::all_of(nodes.begin(), nodes.end(), [](auto& node) { return node->place; }); });
  }
  // A port where nobody listens, for nodes that come before node 0.
  static std::uint16_t free_port() { return listen_on("127.0.0.1", 0, "test").port; }
};

inline Node::Node(World& world, StaticJob job) {
  member = std::make_unique<StaticMember>(
      world.io, std::move(job),
      StaticOrders{[this](const StaticPlace& given) { place = given; },
                   [this](const std::string& line) { lines.push_back(line); },
                   [this](const StaticFailure& what) { failure = what; }, [this] { over = true; }});
}

}  // namespace dtrun::tests
