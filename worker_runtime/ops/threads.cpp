#include "worker_runtime/ops/threads.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime::ops {
namespace {

thread_local bool inside_chunk = false;

struct Job {
  void (*chunk)(void*, std::int64_t);
  void* context;
  std::int64_t chunks;
  std::atomic<std::int64_t> next{0};
  std::mutex error_mutex;
  std::exception_ptr error;

  void work() {
    const bool outer = std::exchange(inside_chunk, true);
    for (std::int64_t i = next.fetch_add(1); i < chunks; i = next.fetch_add(1)) {
      try {
        chunk(context, i);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        next.store(chunks);
      }
    }
    inside_chunk = outer;
  }
};

// The threads beside the caller. They sleep between jobs; run() returns only when every one of them has let go of the
// job.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { loop(); });
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void run(Job& job) {
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      ++generation_;
    }
    wake_.notify_all();
    job.work();
    std::unique_lock lock(mutex_);
    job_ = nullptr;
    idle_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void loop() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stop_ || (generation_ != seen && job_ != nullptr); });
      if (stop_) return;
      seen = generation_;
      Job* const job = job_;
      ++busy_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--busy_ == 0) idle_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  Job* job_ = nullptr;
  std::uint64_t generation_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

struct State {
  std::atomic<int> threads{1};
  std::mutex user;  // held by the caller that uses the pool
  std::optional<Pool> pool;
};

State& state() {
  static State instance;
  return instance;
}

}  // namespace

void set_num_threads(int count) {
  if (count < 1 || count > 1024)
    throw UsageError("ops", fmt::format("number of threads: {}, expected 1 to 1024", count));
  State& s = state();
  const std::lock_guard lock(s.user);
  if (count == s.threads.load()) return;
  s.pool.reset();
  if (count > 1) s.pool.emplace(count - 1);
  s.threads.store(count);
}

int num_threads() noexcept { return state().threads.load(std::memory_order_relaxed); }

int default_num_threads(int local_ranks) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0
                        ? CPU_COUNT(&set)
                        : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / std::max(1, local_ranks));
}

void parallel_chunks(std::int64_t chunks, void (*chunk)(void* context, std::int64_t index), void* context) {
  State& s = state();
  if (chunks > 1 && !inside_chunk && s.threads.load(std::memory_order_relaxed) > 1) {
    if (const std::unique_lock lock(s.user, std::try_to_lock); lock && s.pool) {
      Job job{.chunk = chunk, .context = context, .chunks = chunks, .next = {}, .error_mutex = {}, .error = {}};
      s.pool->run(job);
      if (job.error) std::rethrow_exception(job.error);
      return;
    }
  }
  for (std::int64_t i = 0; i < chunks; ++i) chunk(context, i);
}

}  // namespace dtrun::runtime::ops
