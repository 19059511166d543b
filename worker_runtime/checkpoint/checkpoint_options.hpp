// How checkpoints are saved.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>

namespace dtrun::rendezvous {
class Store;
}

namespace dtrun::runtime {

struct CheckpointOptions {
  std::filesystem::path directory;  // made when it is missing; the same one on all hosts
  int rank = 0;
  int world = 1;
  // Through which the ranks talk, under "checkpoint/"; null with one rank. Waits block the line, so it is the writer's
  // own one. Another writer of the same ranks needs another store, or a prefix.
  std::shared_ptr<rendezvous::Store> store = nullptr;
  int keep = 2;                                                 // newest complete ones; 0: all
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of a save, for ranks that do not come
  bool asynchronous = true;                                     // false: save() returns when all is done
};

}  // namespace dtrun::runtime
