// The coordinator and its agents over real sockets, in one thread.
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <memory>

#include "rendezvous/coordinator/coordinator_server.hpp"
#include "rendezvous/coordinator/membership_client.hpp"
#include "tests/catch.hpp"

using namespace dtrun;
using namespace dtrun::rendezvous;
using namespace std::chrono_literals;
namespace asio = boost::asio;

namespace {

JobRules rules(int min, int max, int restarts = 0) {
  JobRules rules;
  rules.job = "job";
  rules.min_nodes = min;
  rules.max_nodes = max;
  rules.max_restarts = restarts;
  rules.heartbeat = 50ms;
  rules.dead_after = 500ms;
  rules.last_call = 100ms;
  rules.join_timeout = 5s;
  return rules;
}

struct Job;

// An agent whose workers are a number.
struct Agent {
  Agent(Job& owner, std::size_t number, const std::string& name);
  Job& job;
  std::size_t index;
  std::optional<Assignment> running;
  std::vector<Assignment> started;
  std::vector<std::string> stores;
  std::optional<Verdict> verdict;
  MembershipClient client;
};

struct Job {
  explicit Job(JobRules settings) { serve(std::move(settings)); }

  void serve(JobRules settings) {
    name = settings.job;
    server = std::make_unique<CoordinatorServer>(
        io, std::move(settings), "127.0.0.1", 0,
        CoordinatorServer::Callbacks{[this](const std::string& line) { notes.push_back(line); },
                                     [this] { over = true; }});
    port = server->port();
  }
  Agent& add(const std::string& job_name = "job") {
    agents.push_back(std::make_unique<Agent>(*this, agents.size(), job_name));
    agents.back()->client.join();
    return *agents.back();
  }
  template <class Condition>
  bool until(Condition condition, Clock::duration limit = 10s) {
    const Deadline deadline = Deadline::after(limit);
    while (!condition() && !deadline.passed()) io.run_one_for(20ms);
    return condition();
  }
  bool all_run(std::size_t count) {
    return until([&] {
      return static_cast<std::size_t>(std::count_if(
                 agents.begin(), agents.end(), [](const auto& agent) { return agent && agent->running; })) == count;
    });
  }
  bool all_ended() {
    return until([&] {
      return std::all_of(agents.begin(), agents.end(), [](const auto& agent) { return !agent || agent->verdict; });
    });
  }
  bool noted(const std::string& part) const {
    return std::any_of(notes.begin(), notes.end(),
                       [&](const auto& note) { return note.find(part) != std::string::npos; });
  }

  asio::io_context io{1};
  std::string name;
  std::unique_ptr<CoordinatorServer> server;
  std::uint16_t port = 0;
  std::vector<std::string> notes;
  bool over = false;
  std::vector<std::unique_ptr<Agent>> agents;
};

Agent::Agent(Job& owner, std::size_t number, const std::string& name)
    : job(owner),
      index(number),
      client(owner.io, Hello{name, kMembershipVersion, "node" + std::to_string(number), "", 2, {}},
             Endpoint{"127.0.0.1", owner.port}, 5s,
             MembershipOrders{
                 [this](Epoch epoch) { client.store_opened(epoch, static_cast<std::uint16_t>(4000 + epoch)); },
                 [this](const Assignment& place, const Start& start) {
                   running = place;
                   started.push_back(place);
                   stores.push_back(start.store_host + ":" + std::to_string(start.store_port));
                 },
                 [this](const StopWorkers& stop) {
                   running.reset();
                   client.workers_gone(stop.epoch);
                 },
                 [](const Waiting&) {}, [this](const Verdict& end) { verdict = end; }}) {}

// What a stranger sends; true when the server closes the connection within the time.
bool closed_after(Job& job, const std::string& bytes, Clock::duration limit) {
  asio::ip::tcp::socket socket(job.io);
  socket.connect({asio::ip::make_address("127.0.0.1"), job.port});
  asio::write(socket, asio::buffer(bytes));
  bool closed = false;
  char byte[512];
  std::function<void()> read = [&] {
    socket.async_read_some(asio::buffer(byte), [&](const boost::system::error_code& error, std::size_t) {
      if (error) {
        closed = true;
      } else {
        read();
      }
    });
  };
  read();
  const bool result = job.until([&] { return closed; }, limit);
  boost::system::error_code ignored;
  socket.close(ignored);
  job.io.run_for(5ms);
  return result;
}

}  // namespace

TEST_CASE("agents meet, run one round and end together", "[membership]") {
  Job job(rules(3, 3));
  for (int i = 0; i < 3; ++i) job.add();
  REQUIRE(job.all_run(3));
  for (auto& agent : job.agents) {
    CHECK(agent->running->world_size == 6);
    CHECK(agent->running->first_rank == 2 * agent->running->group_rank);
    CHECK(agent->stores.back() == "127.0.0.1:4001");
  }
  for (auto& agent : job.agents) agent->client.workers_ended(Report{1, true, true, {}});
  REQUIRE(job.all_ended());
  for (auto& agent : job.agents) CHECK(*agent->verdict == Verdict{});
  CHECK(job.until([&] { return job.over; }, 2s));
}

TEST_CASE("a failing worker starts everybody anew once, then ends everybody with its code", "[membership]") {
  Job job(rules(2, 2, 1));
  job.add();
  job.add();
  REQUIRE(job.all_run(2));
  const Verdict failure{3, "rank 2 failed", "node1", 2};
  job.agents[1]->client.workers_ended(Report{1, false, true, failure});
  REQUIRE(job.until([&] { return job.agents[0]->started.size() == 2 && job.agents[1]->started.size() == 2; }));
  CHECK(job.agents[0]->running->restart_count == 1);
  CHECK(job.agents[0]->stores.back() == "127.0.0.1:4002");
  const auto begin = Clock::now();
  job.agents[1]->client.workers_ended(Report{2, false, true, failure});
  REQUIRE(job.all_ended());
  CHECK(Clock::now() - begin < 1s);
  for (auto& agent : job.agents) CHECK(*agent->verdict == failure);
}

TEST_CASE("an agent that dies is noticed at once and replaced by a spare", "[membership]") {
  Job job(rules(2, 2));
  job.add();
  job.add();
  REQUIRE(job.all_run(2));
  job.add();
  REQUIRE(job.until([&] { return job.server->state().nodes_here() == 3; }));
  const auto begin = Clock::now();
  job.agents[0].reset();
  REQUIRE(job.until([&] { return job.agents[1]->started.size() == 2 && job.agents[2]->started.size() == 1; }));
  CHECK(Clock::now() - begin < 400ms);  // not by its silence
  CHECK(job.agents[2]->running->group_rank == 0);
  CHECK(job.agents[1]->running->group_rank == 1);
}

TEST_CASE("when the coordinator is gone every agent ends with 75, without workers", "[membership]") {
  Job job(rules(2, 2));
  job.add();
  job.add();
  REQUIRE(job.all_run(2));
  const auto begin = Clock::now();
  job.server.reset();
  REQUIRE(job.all_ended());
  CHECK(Clock::now() - begin < 1s);
  for (auto& agent : job.agents) {
    CHECK(agent->verdict->exit_code == 75);
    CHECK_THAT(agent->verdict->text, Catch::Contains("127.0.0.1:") && Catch::Contains("gone"));
    CHECK_FALSE(agent->running);
  }
}

TEST_CASE("nobody at the endpoint is told with the reason when the join budget is used up", "[membership]") {
  asio::io_context io{1};
  std::optional<Verdict> verdict;
  MembershipOrders orders;
  orders.exit = [&](const Verdict& end) { verdict = end; };
  std::uint16_t port = 0;
  {
    asio::ip::tcp::acceptor free(io, {asio::ip::make_address("127.0.0.1"), 0});
    port = free.local_endpoint().port();
  }
  MembershipClient client(io, Hello{.job = "job", .node = "n", .address = "", .slots = 1, .node_rank = {}},
                          {"127.0.0.1", port}, 600ms, orders);
  client.join();
  io.run_for(200ms);
  CHECK_FALSE(verdict);
  CHECK(client.problem() == "refused");
  io.run_for(2s);
  REQUIRE(verdict);
  CHECK(verdict->exit_code == 75);
  CHECK_THAT(verdict->text, Catch::Contains("no coordinator at 127.0.0.1:") && Catch::Contains("refused"));
}

TEST_CASE("an agent of another job is refused with one line on both sides", "[membership]") {
  Job job(rules(1, 2));
  auto& stranger = job.add("other");
  REQUIRE(job.until([&] { return stranger.verdict.has_value(); }));
  CHECK(stranger.verdict->exit_code == 75);
  CHECK_THAT(stranger.verdict->text, Catch::Contains("belongs to job \"other\""));
  CHECK(job.noted("belongs to job"));
}

TEST_CASE("what is no agent is closed, and disturbs nobody", "[membership]") {
  Job job(rules(2, 2));
  job.add();
  job.add();
  REQUIRE(job.all_run(2));
  CHECK(closed_after(job, "GET / HTTP/1.1\r\n\r\n", 2s));
  CHECK(closed_after(job, std::string("\x00\xce\xf7\x85\x3c\x0d", 6), 2s));
  CHECK(job.noted("c10d"));
  CHECK(closed_after(job, std::string("\0\0\0\2{}", 6), 2s));
  CHECK(closed_after(job, encode(ToCoordinator(Heartbeat{})), 2s));
  CHECK(closed_after(job, "", 2s));                             // says nothing
  CHECK(closed_after(job, std::string("\0\0\0\x50{", 5), 2s));  // and no more
  CHECK(job.agents[0]->started.size() == 1);
  CHECK(job.agents[0]->running);
}

TEST_CASE("five hundred agents form a round and end, with messages in proportion", "[membership]") {
  std::uint64_t per_agent[2] = {};
  for (const int count : {50, 500}) {
    auto settings = rules(count, count);
    settings.heartbeat = 1s;
    settings.dead_after = 5s;
    Job job(settings);
    const auto begin = Clock::now();
    for (int i = 0; i < count; ++i) job.add();
    REQUIRE(job.all_run(static_cast<std::size_t>(count)));
    const auto formed = Clock::now() - begin;
    for (auto& agent : job.agents) agent->client.workers_ended(Report{1, true, true, {}});
    REQUIRE(job.all_ended());
    CHECK(job.until([&] { return job.over; }, 2s));
    per_agent[count == 500] = job.server->messages() / static_cast<std::uint64_t>(count);
    WARN(count << " agents: a round after " << std::chrono::duration<double>(formed).count() * 1e3 << " ms, "
               << job.server->messages() << " messages");
  }
  CHECK(per_agent[1] <= per_agent[0] + 4);  // heartbeats of a slow machine
}
