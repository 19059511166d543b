// What an agent and the coordinator of its job say to each other. One ordered connection per agent; how a message looks
// as bytes is message_text.hpp's.
//
//   agent                                coordinator
//     hello                        ->
//                                  <-    welcome | refuse
//                                  <-    assignment(epoch)     places, before anything runs
//     ready(epoch)                 ->                          the first node has opened the store of the round
//                                  <-    start(epoch)          everybody is ready
//     heartbeat(epoch)             ->
//                                  <-    heartbeat_answer
//     report(epoch, result)        ->
//                                  <-    stop(epoch)           a new round follows
//     stopped(epoch)               ->                          no process of that round is left
//                                  <-    finished(verdict)     the job is over, for everybody
//     leave                        ->
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace dtrun::rendezvous {

// Number of a round, from 1; every message of a round carries it, and what belongs to another round is not heard.
using Epoch = std::uint64_t;

inline constexpr int kMembershipVersion = 2;

struct Hello {
  std::string job;
  int version = kMembershipVersion;
  std::string node;     // host name
  std::string address;  // where its workers can be reached
  int slots = 1;        // workers it will run
  std::optional<int> node_rank;
  std::string role = "default";  // ranks are also counted within each role
  int min_nodes = 0;             // of its --nnodes; 0: not said. Those of the coordinator's host count
  int max_nodes = 0;
  bool operator==(const Hello&) const = default;
};

struct Heartbeat {
  std::uint64_t number = 0;
  Epoch epoch = 0;  // of the running round, 0 when none runs
  bool operator==(const Heartbeat&) const = default;
};

struct Ready {
  Epoch epoch = 0;
  // The round's store, from the node that was told to open it; without a host it is at the node's address.
  std::uint16_t store_port = 0;
  std::string store_host = {};
  bool operator==(const Ready&) const = default;
};

// Why a round failed, or how a job ended. `rank` < 0: no worker of ours is to blame.
struct Verdict {
  int exit_code = 0;
  std::string text;  // one line
  std::string node;  // where the cause is, may be empty
  int rank = -1;
  std::string no_restart = {};  // why no new round follows, when it is not for their number
  bool operator==(const Verdict&) const = default;
};

struct Report {
  Epoch epoch = 0;
  bool success = false;
  bool retry = true;       // false: a new round cannot help (the program is missing)
  Verdict verdict;         // of a failure
  std::int64_t step = -1;  // finished steps of its workers when one failed; -1: they do not tell
  bool out_of_memory = false;
  bool operator==(const Report&) const = default;
};

struct Stopped {
  Epoch epoch = 0;
  std::int64_t step = -1;  // finished steps of its slowest worker of those that tell; -1: none does
  bool operator==(const Stopped&) const = default;
};

struct Leave {
  std::string reason;
  bool operator==(const Leave&) const = default;
};

using ToCoordinator = std::variant<Hello, Heartbeat, Ready, Report, Stopped, Leave>;

struct Welcome {
  std::uint64_t agent = 0;
  std::int64_t heartbeat_ms = 1000;   // how often to speak
  std::int64_t dead_after_ms = 5000;  // silence after which the other side is gone
  bool operator==(const Welcome&) const = default;
};

struct Refuse {
  std::string why;
  bool again = false;  // a new hello may be accepted: the agent was taken for dead
  bool operator==(const Refuse&) const = default;
};

struct Assignment {
  Epoch epoch = 0;
  int restart_count = 0;
  int group_rank = 0;  // index of this node
  int group_world_size = 1;
  int first_rank = 0;  // of this node's workers
  int slots = 1;
  int world_size = 1;
  bool open_store = false;  // this node hosts the store of the round
  int first_role_rank = 0;  // the same within the node's role
  int role_world_size = 1;
  bool operator==(const Assignment&) const = default;
};

struct Start {
  Epoch epoch = 0;
  std::string store_host;
  std::uint16_t store_port = 0;
  bool operator==(const Start&) const = default;
};

struct Stop {
  Epoch epoch = 0;
  std::string why;
  bool operator==(const Stop&) const = default;
};

struct HeartbeatAnswer {
  std::uint64_t number = 0;
  bool operator==(const HeartbeatAnswer&) const = default;
};

// Asks for a sign of life; answered by a heartbeat at once.
struct Ping {
  bool operator==(const Ping&) const = default;
};

// What the job, or this agent, waits for; for the one who looks at the screen.
struct Waiting {
  int here = 0;
  int wanted = 0;   // for a round; while one runs: the most it can have
  int seconds = 0;  // since a node is missing
  int running = 0;  // nodes of the round that runs without this one; 0: none does
  bool operator==(const Waiting&) const = default;
};

struct Finished {
  Verdict verdict;
  bool operator==(const Finished&) const = default;
};

using ToAgent = std::variant<Welcome, Refuse, Assignment, Start, Stop, HeartbeatAnswer, Ping, Waiting, Finished>;

}  // namespace dtrun::rendezvous
