// What the tests of worker_runtime/mesh share: meshes to try, random tensors and layouts that all ranks agree on.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/support/run_ranks.hpp"
#include "worker_runtime/mesh/dtensor.hpp"

namespace dtrun::test {

struct MeshCase {
  std::vector<int> extents;
  std::vector<std::string> names;
  int size() const {
    int result = 1;
    for (const int extent : extents) result *= extent;
    return result;
  }
};
inline const std::vector<MeshCase> kMeshes{
    {{1}, {"a"}},         {{2}, {"a"}},         {{4}, {"a"}},         {{2, 2}, {"a", "b"}},
    {{2, 3}, {"a", "b"}}, {{3, 2}, {"a", "b"}}, {{1, 3}, {"a", "b"}}, {{2, 1, 2}, {"a", "b", "c"}}};

inline runtime::Shape random_shape(std::mt19937& random) {
  std::vector<std::int64_t> dims;
  for (auto rank = random() % 4; rank-- > 0;) dims.push_back(static_cast<std::int64_t>(random() % 10));
  if (random() % 8 == 0) dims = {64, 40};  // beyond what shm passes inline
  return runtime::Shape{std::span<const std::int64_t>(dims)};
}

inline runtime::Layout random_layout(std::mt19937& random, int axes, int dims, bool with_partial) {
  using runtime::Placement;
  std::vector<Placement> placements;
  std::vector<int> order;
  for (int axis = 0; axis < axes; ++axis) {
    const auto kind = random() % 4;
    if (kind == 1 && with_partial) {
      placements.push_back(Placement::partial());
    } else if (kind >= 2 && dims > 0) {
      placements.push_back(Placement::shard(static_cast<int>(random() % static_cast<unsigned>(dims))));
    } else {
      placements.push_back(Placement::replicate());
    }
    order.push_back(axis);
  }
  std::shuffle(order.begin(), order.end(), random);
  return runtime::Layout(placements, order);
}

// Any numbers, -0.0 among them.
inline void fill_random(const runtime::Tensor& tensor, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto number = [&] { return random() % 16 == 0 ? -0.0F : (static_cast<float>(random()) - 2e9F) * 1e-3F; };
  for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.numel()); ++i) {
    switch (tensor.dtype()) {
      case runtime::DType::f32:
        tensor.span<float>()[i] = number();
        break;
      case runtime::DType::bf16:
        tensor.span<runtime::bfloat16>()[i].bits =
            static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(number()) >> 16);
        break;
      case runtime::DType::i32:
        tensor.span<std::int32_t>()[i] = static_cast<std::int32_t>(random());
        break;
      case runtime::DType::i64:
        tensor.span<std::int64_t>()[i] = static_cast<std::int64_t>(random());
        break;
      case runtime::DType::u8:
        tensor.span<std::uint8_t>()[i] = static_cast<std::uint8_t>(random());
        break;
    }
  }
}

inline bool same_bits(const runtime::Tensor& a, const runtime::Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

// The part of `full` in `box`.
inline runtime::Tensor cut(runtime::ProcessGroup& group, const runtime::Tensor& full, const runtime::Box& box) {
  const runtime::Tensor result = group.allocate(box.shape, full.dtype());
  runtime::copy_box_out(result, full, box);
  return result;
}

}  // namespace dtrun::test
