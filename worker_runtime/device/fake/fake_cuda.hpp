// FakeCuda: a simulated accelerator behind CudaApi and KernelApi, one per process. Calls only queue work; it runs when
// the host waits or asks, streams against each other in an order drawn from a seed, on the thread that asks. Kernels
// are the host twins of kernels/. Device memory cannot be touched by the host meanwhile: it faults.
//
// Every operation says what it touches. Two that touch the same bytes, one of them writing, without stream order, event
// or host wait between them are a race: the call that brings the second one fails with error 719 whose text is the
// report, and so does every later call of that device. Each thread of the host has an order of its own: what one thread
// waited for, another one that was there before does not know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/device/cuda_api.hpp"
#include "worker_runtime/device/device.hpp"

namespace dtrun::runtime::fake {

// What runs next, of the streams whose first operation can run.
enum class Strategy : std::uint8_t {
  random,  // any; every other wait, one stream drawn at random runs only when no other can
  fifo,    // in the order of the calls
  late,    // what the host waits for and what that waits for; other streams only when these cannot run
  starve,  // stream number `starved` only when no other can
};

struct FakeCudaConfig {
  int devices = 1;
  std::size_t memory_bytes = std::size_t{16} << 30;  // of a device
  std::uint64_t seed = 1;
  Strategy strategy = Strategy::random;
  int starved = 1;  // streams are numbered from 1 in the order of their creation; 0: those of null handles
  int major = 9, minor = 0;
  bool check_races = true;
  bool strict_free = false;     // memory that was not waited for is a race, though cudaFree waits
  bool keep_history = false;    // for history()
  bool protection_keys = true;  // guard memory with them where the machine has them, otherwise by page rights

  // "devices=2,memory=1GiB,seed=7,strategy=starve:3,races=off,free=strict,capability=8.0", all optional. Throws
  // UsageError.
  static FakeCudaConfig parse(std::string_view text);
  static FakeCudaConfig from_environment();  // DTRUN_FAKE_CUDA
};

// The tables. The first call installs what the environment says, unless install() came before.
const cuda::CudaApi& cuda_api();
const cuda::KernelApi& kernel_api();
// A new accelerator. All devices, streams, events and memory of the one before must be gone or are lost.
void install(const FakeCudaConfig& config);
// Takes the accelerator away and says what was still there: a line for each block of memory, stream and event.
std::vector<std::string> reset();

// Device `index` of kind "fake-cuda" with these tables.
std::unique_ptr<Device> create_fake_device(int index, const BlasLtApi* blas_lt = nullptr,
                                           const CudnnApi* cudnn = nullptr);

// Work of another library on a stream.
enum class Poll : std::uint8_t { again, done, failed };
struct FakeOperation {
  std::string name;
  std::vector<cuda::Access> accesses;
  // Called by the thread that waits or asks, one operation at a time, with the memory open for this thread and no lock
  // held: until it says done. It must not block and not call the runtime. `again`: other streams go on, then it is
  // asked again. `failed` or an exception (its text is told) ends the device with error 719.
  std::function<Poll()> poll;
};
cuda::Result enqueue(cuda::StreamHandle stream, FakeOperation operation);

// Reports of all races since install().
std::vector<std::string> races();
// The host reads or writes pinned memory: must be ordered as an operation is. Only what is told is checked (the
// runtime cannot see it). False after a report.
bool host_access(const void* data, std::size_t bytes, bool writes);
// The n-th call from now (1: the next) of a member of CudaApi, or "launch", returns `result` and does nothing. Errors
// from 700 on are sticky: the device is of no use afterwards. Throws std::invalid_argument for an unknown member.
void fail(std::string_view member, int nth, cuda::Result result);

struct Ran {
  int stream;
  std::string name;
};
// What has run, in order, with keep_history.
std::vector<Ran> history();

}  // namespace dtrun::runtime::fake
