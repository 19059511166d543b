#include "worker_runtime/mesh/layout.hpp"

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "worker_runtime/mesh/box.hpp"

using namespace dtrun;
using namespace dtrun::runtime;

namespace {

const Placement R = Placement::replicate();
const Placement P = Placement::partial();
Placement S(int dim) { return Placement::shard(dim); }

std::vector<std::string> boxes_of(const Shape& shape, const Layout& layout, const MeshShape& mesh) {
  std::vector<std::string> result;
  for (const Box& box : local_boxes(shape, layout, mesh)) result.push_back(box.to_string());
  return result;
}
using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("chunks are torch.chunk's: of the ceiling, the last ones shorter or empty") {
  struct Row {
    std::int64_t extent;
    int parts;
    std::vector<Range> expected;
  };
  const std::vector<Row> rows{
      {8, 4, {{0, 2}, {2, 2}, {4, 2}, {6, 2}}},
      {7, 4, {{0, 2}, {2, 2}, {4, 2}, {6, 1}}},
      {5, 4, {{0, 2}, {2, 2}, {4, 1}, {5, 0}}},
      {3, 4, {{0, 1}, {1, 1}, {2, 1}, {3, 0}}},
      {1, 3, {{0, 1}, {1, 0}, {1, 0}}},
      {0, 2, {{0, 0}, {0, 0}}},
      {6, 1, {{0, 6}}},
  };
  for (const Row& row : rows)
    for (int i = 0; i < row.parts; ++i)
      CHECK(chunk(row.extent, row.parts, i) == row.expected[static_cast<std::size_t>(i)]);
}

TEST_CASE("each rank of a layout holds one box") {
  const MeshShape mesh({2, 2}, {"dp", "tp"});
  const Shape shape({6, 5});
  CHECK(boxes_of(shape, Layout({R, S(1)}), mesh) == Texts{"[0:6, 0:3]", "[0:6, 3:5]", "[0:6, 0:3]", "[0:6, 3:5]"});
  CHECK(boxes_of(shape, Layout({S(0), S(1)}), mesh) == Texts{"[0:3, 0:3]", "[0:3, 3:5]", "[3:6, 0:3]", "[3:6, 3:5]"});
  CHECK(boxes_of(shape, Layout({S(0), P}), mesh) == Texts{"[0:3, 0:5]", "[0:3, 0:5]", "[3:6, 0:5]", "[3:6, 0:5]"});
}

TEST_CASE("the order of cuts of one dimension is explicit: FSDP over tensor parallelism needs nothing special") {
  const MeshShape mesh({2, 2}, {"dp", "tp"});
  const Shape shape({6});
  const Layout dp_first({S(0), S(0)});
  const Layout tp_first({S(0), S(0)}, {1, 0});
  CHECK(boxes_of(shape, dp_first, mesh) == Texts{"[0:2]", "[2:3]", "[3:5]", "[5:6]"});
  CHECK(boxes_of(shape, tp_first, mesh) == Texts{"[0:2]", "[3:5]", "[2:3]", "[5:6]"});
  CHECK(dp_first != tp_first);
  CHECK(tp_first.cuts(0) == std::vector{1, 0});
  CHECK(tp_first.to_string() == "[S(0), S(0)] cut in order 1, 0");
  CHECK(Layout({R, S(0)}).with(0, S(0)) == tp_first);
  CHECK(Layout::sharded(2, 0, {1, 0}) == tp_first);
  // Where nothing is cut twice, the order says nothing.
  CHECK(Layout({S(0), S(1)}, {1, 0}) == Layout({S(0), S(1)}));
  CHECK(Layout({P, R}, {1, 0}) == Layout({P, R}));
}

TEST_CASE("the boxes of a layout cover the tensor once per replica, however uneven") {
  const MeshShape mesh({3, 2, 4}, {"a", "b", "c"});
  for (const std::int64_t extent : {0, 1, 2, 5, 7, 23, 24, 25, 100}) {
    for (const Layout& layout :
         {Layout({S(0), S(0), S(0)}), Layout({S(0), S(1), S(0)}, {2, 1, 0}), Layout({S(1), S(0), R}),
          Layout({R, P, S(0)}), Layout({S(0), S(0), S(0)}, {2, 0, 1})}) {
      const Shape shape({extent, 3});
      std::vector<int> count(static_cast<std::size_t>(shape.numel()));
      for (const Box& box : local_boxes(shape, layout, mesh)) {
        for (std::int64_t r = 0; r < box.shape[0]; ++r)
          for (std::int64_t c = 0; c < box.shape[1]; ++c)
            ++count[static_cast<std::size_t>((box.offset[0] + r) * 3 + box.offset[1] + c)];
      }
      int replicas = 1;
      for (int axis = 0; axis < 3; ++axis)
        if (!layout[axis].is_shard()) replicas *= mesh.extent(axis);
      for (const int times : count) REQUIRE(times == replicas);
    }
  }
}

TEST_CASE("boxes know whether their elements are neighbours") {
  const Shape outer({4, 3, 2});
  const auto box = [](std::array<std::int64_t, 6> offset, Shape shape) { return Box{offset, shape}; };
  CHECK(box({1, 0, 0}, {2, 3, 2}).is_contiguous_in(outer));
  CHECK(box({1, 1, 0}, {1, 2, 2}).is_contiguous_in(outer));
  CHECK(box({1, 1, 1}, {1, 1, 1}).is_contiguous_in(outer));
  CHECK_FALSE(box({1, 1, 0}, {2, 2, 2}).is_contiguous_in(outer));
  CHECK_FALSE(box({1, 1, 0}, {1, 2, 1}).is_contiguous_in(outer));
  CHECK(box({1, 1, 0}, {1, 2, 2}).first_in(outer) == 8);
}

TEST_CASE("elements move between boxes and dense memory, any shape") {
  MemoryAccount account;
  Arena arena(MemoryTag::work, account);
  const Tensor tensor = Tensor::empty({3, 4, 5}, DType::i32, arena);
  for (std::int32_t i = 0; i < 60; ++i) tensor.span<std::int32_t>()[static_cast<std::size_t>(i)] = i;
  for (const Box& box : {Box{{0, 0, 0}, {3, 4, 5}}, Box{{1, 0, 0}, {2, 4, 5}}, Box{{0, 1, 0}, {3, 2, 5}},
                         Box{{1, 2, 3}, {2, 2, 2}}, Box{{2, 3, 4}, {1, 1, 1}}, Box{{0, 0, 2}, {3, 4, 0}}}) {
    const Tensor dense = Tensor::empty(box.shape, DType::i32, arena);
    copy_box_out(dense, tensor, box);
    const Tensor back = Tensor::zeros(tensor.shape(), DType::i32, arena);
    copy_box_in(back, box, dense);
    std::size_t i = 0;
    for (std::int64_t a = 0; a < box.shape[0]; ++a)
      for (std::int64_t b = 0; b < box.shape[1]; ++b)
        for (std::int64_t c = 0; c < box.shape[2]; ++c) {
          const auto at =
              static_cast<std::size_t>(((box.offset[0] + a) * 4 + box.offset[1] + b) * 5 + box.offset[2] + c);
          REQUIRE(dense.span<std::int32_t>()[i++] == static_cast<std::int32_t>(at));
          REQUIRE(back.span<std::int32_t>()[at] == static_cast<std::int32_t>(at));
        }
  }
}

TEST_CASE("initial values of a part are those of the whole tensor there") {
  MemoryAccount account;
  Arena arena(MemoryTag::work, account);
  const Shape shape({4, 6, 5});
  const Tensor whole = Tensor::empty(shape, DType::f32, arena);
  const auto stream = ops::RandomStream::of(3, "weight");
  ops::fill_normal(whole, 1.0F, stream);
  for (const Box& box : {Box{{0, 0, 0}, {4, 6, 5}}, Box{{2, 0, 0}, {2, 6, 5}}, Box{{0, 2, 0}, {4, 3, 5}},
                         Box{{0, 0, 3}, {4, 6, 2}}, Box{{1, 2, 0}, {2, 3, 5}}, Box{{1, 2, 1}, {1, 3, 2}},
                         Box{{1, 0, 2}, {2, 6, 1}}, Box{{3, 5, 4}, {1, 1, 1}}, Box{{0, 0, 5}, {4, 6, 0}}}) {
    INFO(box.to_string());
    const Tensor part = Tensor::empty(box.shape, DType::f32, arena);
    const Tensor expected = Tensor::empty(box.shape, DType::f32, arena);
    ops::fill_normal(part, 1.0F, stream, global_index(shape, box));
    copy_box_out(expected, whole, box);
    for (std::size_t i = 0; i < part.span<float>().size(); ++i)
      REQUIRE(part.span<float>()[i] == expected.span<float>()[i]);
  }
  CHECK_THROWS_AS(global_index(shape, Box{{1, 2, 1}, {2, 3, 2}}), ShapeError);
}

TEST_CASE("layouts that cannot be are refused") {
  const MeshShape mesh({2, 2}, {"dp", "tp"});
  CHECK_THROWS_WITH(Layout({R, S(2)}).check({4, 4}, mesh),
                    Catch::Contains("S(2) on axis tp of a tensor [4, 4], expected a dimension below 2"));
  CHECK_THROWS_WITH(Layout({S(0)}).check({4}, mesh), Catch::Contains("1 placements, expected 2"));
  CHECK_THROWS_AS(Layout({S(0), R}).check({}, mesh), ShapeError);
  CHECK_THROWS_AS(Layout({S(-1), R}), ShapeError);
  CHECK_THROWS_WITH(Layout({S(0), R}, {0, 0}), Catch::Contains("order 0, 0 of cuts, expected each of 2 axes once"));
  CHECK_THROWS_AS(Layout({S(0), R}, {1}), ShapeError);
}

TEST_CASE("gradients: shards stay, replicas and sums change places") {
  CHECK(adjoint(Layout({R, S(0), P})) == Layout({P, S(0), R}));
  const Layout fsdp_over_tp({S(0), S(0)}, {1, 0});
  CHECK(adjoint(fsdp_over_tp) == fsdp_over_tp);
  CHECK(adjoint(adjoint(Layout({R, S(1), P}))) == Layout({R, S(1), P}));
}
