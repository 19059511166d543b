// The part of NCCL that dtrun calls, as a table of function pointers: filled from libnccl.so.2 or by FakeNccl. Nothing
// here needs nccl.h; a test compares values and sizes with it where it is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrun::runtime::nccl {

using Comm = void*;  // ncclComm_t
using Window = void*;
using StreamHandle = void*;  // cudaStream_t

enum Result : int {  // ncclResult_t
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

struct UniqueId {  // ncclUniqueId
  char bytes[128];
};

enum class DataType : int { i8 = 0, u8 = 1, i32 = 2, u32 = 3, i64 = 4, u64 = 5, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };
enum class Op : int { sum = 0, product = 1, max = 2, min = 3, avg = 4 };

// ncclConfig_t as of 2.21 and later fields: the library looks at `size`, `magic` and `version` first, and reads fields
// that its own version knows only. Values of unset fields are kUndefined (INT_MIN) and null.
struct Config {
  std::size_t size;
  unsigned int magic;    // 0xcafebeef
  unsigned int version;  // of the library that is loaded: what it is told it was compiled against
  int blocking;
  int cga_cluster_size;
  int min_ctas;
  int max_ctas;
  const char* net_name;
  int split_share;
  int traffic_class;
  const char* comm_name;
  int collnet_enable;
  int cta_policy;
  int shrink_share;
  int nvls_ctas;
};

// Names are those of NCCL without the prefix "nccl". A member that this version of the library lacks is null where the
// comment says so.
struct NcclApi {
  Result (*get_version)(int* version);  // 22809 is 2.28.9
  Result (*get_unique_id)(UniqueId* id);
  Result (*comm_init_rank_config)(Comm* comm, int ranks, UniqueId id, int rank, Config* config);
  Result (*comm_split)(Comm comm, int color, int key, Comm* new_comm, Config* config);  // 2.18; may be null
  Result (*comm_finalize)(Comm comm);
  Result (*comm_destroy)(Comm comm);
  Result (*comm_abort)(Comm comm);
  Result (*comm_get_async_error)(Comm comm, Result* error);
  Result (*comm_register)(Comm comm, void* data, std::size_t bytes, void** handle);  // 2.19; may be null
  Result (*comm_deregister)(Comm comm, void* handle);                                // 2.19; may be null
  Result (*mem_alloc)(void** data, std::size_t bytes);                               // 2.19; may be null
  Result (*mem_free)(void* data);                                                    // 2.19; may be null
  Result (*all_reduce)(const void* send, void* recv, std::size_t count, DataType type, Op op, Comm comm,
                       StreamHandle stream);
  Result (*broadcast)(const void* send, void* recv, std::size_t count, DataType type, int root, Comm comm,
                      StreamHandle stream);
  Result (*reduce)(const void* send, void* recv, std::size_t count, DataType type, Op op, int root, Comm comm,
                   StreamHandle stream);
  Result (*all_gather)(const void* send, void* recv, std::size_t send_count, DataType type, Comm comm,
                       StreamHandle stream);
  Result (*reduce_scatter)(const void* send, void* recv, std::size_t recv_count, DataType type, Op op, Comm comm,
                           StreamHandle stream);
  Result (*send)(const void* data, std::size_t count, DataType type, int peer, Comm comm, StreamHandle stream);
  Result (*recv)(void* data, std::size_t count, DataType type, int peer, Comm comm, StreamHandle stream);
  Result (*group_start)();
  Result (*group_end)();
  const char* (*get_error_string)(Result result);
  const char* (*get_last_error)(Comm comm);
};

}  // namespace dtrun::runtime::nccl
