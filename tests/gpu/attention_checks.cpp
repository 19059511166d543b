#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/gpu/checks.hpp"
#include "tests/gpu/report.hpp"
#include "worker_runtime/device/cudnn.hpp"
#include "worker_runtime/ops/attention.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/ops/gpu/sdpa.hpp"
#include "worker_runtime/ops/random.hpp"

namespace dtrun::runtime::gpu_check {
namespace {

Tensor host_tensor(const Shape& shape, DType dtype) {
  static MemoryAccount account;
  static Arena arena(MemoryTag::work, account);
  return Tensor::empty(shape, dtype, arena);
}

Tensor random_bf16(Device& device, const Shape& shape, std::uint64_t stream) {
  const Tensor wide = host_tensor(shape, DType::f32), narrow = host_tensor(shape, DType::bf16);
  ops::fill_normal(wide, 1, {13, stream});
  ops::cast_to_bf16(wide, narrow);
  return on_device(device, narrow);
}

Tensor nothing(Device& device, const Shape& shape, DType dtype) {
  const Tensor host = host_tensor(shape, dtype);
  std::memset(host.raw(), 0xFF, host.bytes());  // NaN
  return on_device(device, host);
}

struct Heads {
  std::int64_t batch, heads, kv_heads, time, dim;
};

// Attention of one shape on one device, forward and backward.
class Attention {
 public:
  Attention(Device& device, const Heads& h) : device_(device), h_(h) {
    const Shape queries{h.batch, h.time, h.heads * h.dim}, keys{h.batch, h.time, h.kv_heads * h.dim};
    q_ = random_bf16(device, queries, 1);
    k_ = random_bf16(device, keys, 2);
    v_ = random_bf16(device, keys, 3);
    dout_ = random_bf16(device, queries, 4);
    out_ = nothing(device, queries, DType::bf16);
    lse_ = nothing(device, {h.batch, h.heads, h.time}, DType::f32);
    grads_ = {nothing(device, queries, DType::bf16), nothing(device, keys, DType::bf16),
              nothing(device, keys, DType::bf16)};
  }
  void forward() {
    ops::grouped_attention_forward(q_, k_, v_, static_cast<int>(h_.heads), static_cast<int>(h_.kv_heads), out_, lse_);
  }
  void backward() {
    ops::grouped_attention_backward(q_, k_, v_, out_, lse_, dout_, static_cast<int>(h_.heads),
                                    static_cast<int>(h_.kv_heads), grads_);
  }
  // Everything that both have written, as f32.
  std::vector<Tensor> results() const {
    std::vector<Tensor> all;
    for (const Tensor* x : {&out_, &lse_, &grads_.dq, &grads_.dk, &grads_.dv}) {
      Tensor back = x->to_host();
      if (back.dtype() == DType::bf16) {
        const Tensor wide = host_tensor(back.shape(), DType::f32);
        ops::cast_to_f32(back, wide);
        back = wide;
      }
      all.push_back(back);
    }
    return all;
  }
  // Milliseconds of one call.
  template <class Call>
  double time_of(Call call, int times) {
    for (int i = 0; i < 2; ++i) call();
    const Event start = device_.current().record(true);
    for (int i = 0; i < times; ++i) call();
    const Event end = device_.current().record(true);
    device_.wait(end);
    return std::chrono::duration<double, std::milli>(end.since(start)).count() / times;
  }

 private:
  Device& device_;
  Heads h_;
  Tensor q_, k_, v_, dout_, out_, lse_;
  ops::GroupedAttentionGrads grads_;
};

double error_of(const Tensor& got, const Tensor& expected) {
  double worst = 0, size = 1e-3;
  for (std::int64_t i = 0; i < got.numel(); ++i) {
    const double difference = std::abs(static_cast<double>(got.data<float>()[i]) - expected.data<float>()[i]);
    if (!(difference <= worst)) worst = difference;  // NaN counts as worst
    size = std::max(size, std::abs(static_cast<double>(expected.data<float>()[i])));
  }
  return worst / size;
}

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::ranges::equal(
      a, b, [](const Tensor& x, const Tensor& y) { return std::memcmp(x.raw(), y.raw(), x.bytes()) == 0; });
}

}  // namespace

std::string cudnn_attention_is_ours(Device& ours, Device& cudnn) {
  const bool fake = ours.kind() != "cuda";
  double worst = 0;
  for (const Heads& h : {Heads{2, 4, 4, 100, 64}, Heads{1, 8, 2, 256, 128}, Heads{3, 2, 1, 33, 32}}) {
    const Heads size = fake ? Heads{h.batch, h.heads, h.kv_heads, std::min<std::int64_t>(h.time, 33), 8} : h;
    Attention by_cudnn(cudnn, size), by_us(ours, size);
    for (Attention* one : {&by_cudnn, &by_us}) {
      one->forward();
      one->backward();
    }
    const auto got = by_cudnn.results(), expected = by_us.results();
    for (std::size_t i = 0; i < got.size(); ++i) worst = std::max(worst, error_of(got[i], expected[i]));
    for (int i = 0; i < 10; ++i) {
      by_cudnn.forward();
      by_cudnn.backward();
      expect(same(by_cudnn.results(), got), fmt::format("the bits of {} tokens differ from run to run", size.time));
    }
  }
  const auto text = fmt::format("{}, {} plans, largest difference {:.1e}, bits repeat",
                                ops::gpu::attention_engine(cudnn, DType::bf16, 64, 1024), cudnn.cudnn()->made(), worst);
  expect(worst < 3e-2 && cudnn.cudnn()->made() > 0, text);
  return text;
}

std::string speed_of_attention(Device& ours, Device& cudnn) {
  const bool fake = ours.kind() != "cuda";
  const Heads size = fake ? Heads{1, 2, 2, 16, 8} : Heads{16, 12, 12, 1024, 64};
  const int times = fake ? 1 : 10;
  Attention by_cudnn(cudnn, size), by_us(ours, size);
  double ms[4];
  double* to = ms;
  for (Attention* one : {&by_cudnn, &by_us}) {
    *to++ = one->time_of([&] { one->forward(); }, times);
    *to++ = one->time_of([&] { one->backward(); }, times);
  }
  return fmt::format("{} x {} heads x {} x {}: cuDNN {:.2f} ms forward, {:.2f} backward; ours {:.2f}, {:.2f}",
                     size.batch, size.heads, size.time, size.dim, ms[0], ms[1], ms[2], ms[3]);
}

}  // namespace dtrun::runtime::gpu_check
