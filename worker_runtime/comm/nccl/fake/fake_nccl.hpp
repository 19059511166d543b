// FakeNccl: an NcclApi between ranks that are threads or processes of one machine, with device memory of FakeCuda.
// Communicators meet in shared memory that the unique id names; nothing of it outlives the processes. Operations are
// FakeOperations: they run when the fake device runs, move data through mailboxes of fixed size and never wait inside.
// Sums are in rank order, with the bits of backend shm. Ranks that call different operations on one communicator get an
// error. A peer that died is a remote error. As with NCCL, what has failed or hangs goes on until it is aborted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/comm/nccl/nccl_api.hpp"

namespace dtrun::runtime::nccl::fake {

enum class FaultKind : std::uint8_t {
  remote_error,  // operation `operation` fails, which the communicator reports
  never_ends,    // operation `operation` does not end
  init_hangs,    // set-up does not end
  abort_hangs,   // ncclCommAbort does not return until release_hangs()
};

struct Fault {
  FaultKind kind;
  std::string communicator = {};  // part of its name; empty: any
  int rank = -1;                  // of that communicator; -1: any
  std::uint64_t operation = 0;    // of that rank there, from 0
};

struct FakeNcclConfig {
  int version = 22809;
  int init_polls = 1;    // how often set-up is in progress before it may end
  int launch_polls = 0;  // the same for the launch of operations
  bool has_split = true;
  bool has_memory = true;  // ncclMemAlloc and registration
  std::vector<Fault> faults;

  // "version=21700,init_polls=3,launch_polls=1,split=off,memory=off,fault=never_ends/reduce/1/3", all optional; a fault
  // is kind/communicator/rank/operation, the last three optional. Throws UsageError.
  static FakeNcclConfig parse(std::string_view text);
  static FakeNcclConfig from_environment();  // DTRUN_FAKE_NCCL
};

// Of the process; not while a communicator lives. The first use takes what the environment says.
void install(FakeNcclConfig config);
// The table; a new one after install().
const NcclApi& nccl_api();
// Calls that hang return.
void release_hangs();
// What was made and not given back; registrations of communicators that were destroyed, not aborted.
struct Leaks {
  std::size_t communicators = 0, registrations = 0, ids = 0;
};
Leaks leaks();

}  // namespace dtrun::runtime::nccl::fake
