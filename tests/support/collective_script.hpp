// One script of all verbs for any backend: the same calls, whatever moves the data; what they gave is collected, to be
// compared bit by bit.
#pragma once

#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "tests/catch.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/device/device.hpp"

namespace dtrun::test {

using namespace dtrun::runtime;
using Bytes = std::vector<std::vector<std::byte>>;

struct Case {
  DType dtype;
  std::int64_t count;
};

enum class Place { shared, host, device };

// The same calls whatever the backend; what they gave is collected.
class Script {
 public:
  Script(ProcessGroup& group, Device* device, Place place, Case now)
      : group_(group),
        place_(place),
        case_(now),
        arena_(MemoryTag::work, account_),
        device_arena_(MemoryTag::work, account_, device) {}

  Tensor make(std::int64_t count) {
    if (place_ == Place::host) return Tensor::empty({count}, case_.dtype, arena_);
    // Every second one is not of the group.
    if (place_ == Place::device && ++made_ % 2 == 0) return Tensor::empty({count}, case_.dtype, device_arena_);
    return group_.allocate({count}, case_.dtype);
  }
  Tensor filled(std::int64_t count) {
    std::mt19937 random(static_cast<unsigned>(group_.rank() * 1000 + ++fills_));
    const Tensor host = Tensor::empty({count}, case_.dtype, arena_);
    std::uniform_real_distribution<float> real(-2.0F, 2.0F);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (case_.dtype == DType::f32) host.span<float>()[at] = real(random);
      if (case_.dtype == DType::bf16)
        host.span<bfloat16>()[at].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(real(random)) >> 16);
      if (case_.dtype == DType::i32) host.span<std::int32_t>()[at] = static_cast<std::int32_t>(random());
      if (case_.dtype == DType::i64) host.span<std::int64_t>()[at] = static_cast<std::int64_t>(random()) * 77777;
      if (case_.dtype == DType::u8) host.span<std::uint8_t>()[at] = static_cast<std::uint8_t>(random());
    }
    const Tensor tensor = make(count);
    tensor.copy_from(host);
    return tensor;
  }
  void keep(const Tensor& tensor) {
    const Tensor host = tensor.to_host();
    results.emplace_back(host.raw(), host.raw() + host.bytes());
  }

  void run() {
    const int n = group_.size(), me = group_.rank();
    const std::int64_t count = case_.count;
    std::vector ops{ReduceOp::sum, ReduceOp::max, ReduceOp::min, ReduceOp::product};
    if (case_.dtype == DType::f32 || case_.dtype == DType::bf16) ops.push_back(ReduceOp::avg);
    for (const ReduceOp op : ops) {
      const Tensor tensor = filled(count);
      group_.all_reduce(tensor, op);
      keep(tensor);
      const Tensor input = filled(count * n), output = make(count);
      const Work work = group_.reduce_scatter_async(output, input, op);
      work.wait();
      keep(output);
    }
    const Tensor parts = filled(count * n);
    group_.reduce_scatter(parts.narrow(me * count, count), parts);
    keep(parts.narrow(me * count, count));
    const Tensor whole = make(count * n);
    whole.zero();
    group_.all_gather(whole, filled(count));
    keep(whole);
    const Tensor mine = filled(count * n);
    group_.all_gather(mine, mine.narrow(me * count, count));
    keep(mine);
    for (int root = 0; root < n; ++root) rooted(root);
    const Tensor exchanged = make(count * n);
    group_.all_to_all(exchanged, filled(count * n));
    keep(exchanged);
    coalesced();
    messages();
    group_.barrier();
  }

  Bytes results;

 private:
  void rooted(int root) {
    const int n = group_.size(), me = group_.rank();
    const std::int64_t count = case_.count;
    const Tensor sent = filled(count), reduced = filled(count), whole = make(count * n), part = make(count);
    whole.zero();
    group_.broadcast(sent, root);
    keep(sent);
    group_.reduce(reduced, root, ReduceOp::sum);
    keep(reduced);
    group_.gather(me == root ? whole : Tensor(), filled(count), root);
    keep(whole);
    group_.scatter(part, me == root ? filled(count * n) : Tensor(), root);
    keep(part);
  }
  void coalesced() {
    const std::int64_t count = case_.count;
    const int n = group_.size();
    const std::vector<Tensor> three{filled(count), filled(2 * count + 1), filled(3)};
    group_.all_reduce(three);
    group_.broadcast(three, n - 1);
    const std::vector<Tensor> inputs{filled(count), filled(count + 1)}, outputs{make(count * n), make((count + 1) * n)};
    group_.all_gather(outputs, inputs);
    const std::vector<Tensor> sums{make(count), make(count + 1)};
    group_.reduce_scatter(sums, outputs);
    for (const auto& list : {three, outputs, sums}) {
      for (const Tensor& tensor : list) keep(tensor);
    }
  }
  // Everyone sends to the next one and receives from the one before, in an order that differs between ranks.
  void messages() {
    const int n = group_.size(), me = group_.rank();
    if (n == 1) return;
    for (int round = 0; round < 3; ++round) {
      const Tensor out = filled(case_.count), in = make(case_.count);
      Work sent, received;
      const auto send = [&] { sent = group_.send_async(out, (me + 1) % n, static_cast<std::uint32_t>(round)); };
      const auto receive = [&] {
        received = group_.recv_async(in, (me + n - 1) % n, static_cast<std::uint32_t>(round));
      };
      if ((me + round) % 2 == 0) {
        send();
        receive();
      } else {
        receive();
        send();
      }
      received.wait();
      keep(in);
      sent.wait();
    }
  }

  ProcessGroup& group_;
  Place place_;
  Case case_;
  MemoryAccount account_;
  Arena arena_, device_arena_;
  int fills_ = 0, made_ = 0;
};

inline std::vector<Bytes> on_shm(int n, Case now) {
  std::vector<Bytes> all(static_cast<std::size_t>(n));
  const auto texts = run_ranks(n, [&](ProcessGroup& group) {
    Script script(group, nullptr, Place::shared, now);
    script.run();
    all[static_cast<std::size_t>(group.rank())] = std::move(script.results);
  });
  for (const auto& text : texts) CHECK(text == "");
  return all;
}

}  // namespace dtrun::test
