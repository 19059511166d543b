// The threads that the ops of this process run on. Results never depend on their number: work is cut by shape alone,
// every chunk is computed by one thread in one order, and sums over chunks are combined in chunk order.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace dtrun::runtime::ops {

// At least 1; 1 (the start value) means that every op runs in its caller. Not to be called while an op runs. Throws
// UsageError below 1 or above 1024.
void set_num_threads(int count);
int num_threads() noexcept;
// Cores this process may run on, shared by `local_ranks` processes; at least 1.
int default_num_threads(int local_ranks);

// Calls chunk(i) once for every i in [0, chunks), on the caller and the pool, and returns when all are done. Rethrows
// the first exception of a chunk. Calls from within a chunk run inline. One caller at a time uses the pool; a second
// one runs inline.
void parallel_chunks(std::int64_t chunks, void (*chunk)(void* context, std::int64_t index), void* context);

template <class Function>
void parallel_chunks(std::int64_t chunks, Function&& function) {
  auto* const address = const_cast<void*>(static_cast<const void*>(std::addressof(function)));
  parallel_chunks(
      chunks,
      [](void* context, std::int64_t index) { (*static_cast<std::remove_reference_t<Function>*>(context))(index); },
      address);
}

}  // namespace dtrun::runtime::ops
