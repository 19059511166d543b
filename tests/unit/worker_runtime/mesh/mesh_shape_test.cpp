#include "worker_runtime/mesh/mesh_shape.hpp"

#include <array>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "worker_runtime/comm/single_group.hpp"
#include "worker_runtime/mesh/device_mesh.hpp"

using namespace dtrun;
using namespace dtrun::runtime;

namespace {

using Ints = std::vector<int>;
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("ranks are numbered row-major, and groups along axes list them by coordinate") {
  const MeshShape mesh({2, 3, 4}, {"pp", "dp", "tp"});
  CHECK(mesh.size() == 24);
  CHECK(mesh.to_string() == "pp=2 x dp=3 x tp=4");
  CHECK(mesh.coordinates(17) == Ints{1, 1, 1});
  CHECK(mesh.rank(Ints{1, 1, 1}) == 17);
  CHECK(mesh.group_ranks(Ints{2}, 17) == Ints{16, 17, 18, 19});
  CHECK(mesh.group_ranks(Ints{1}, 17) == Ints{13, 17, 21});
  CHECK(mesh.group_ranks(Ints{0, 1}, 17) == Ints{1, 5, 9, 13, 17, 21});
  CHECK(mesh.group_rank(Ints{0, 1}, 17) == 4);
  CHECK(mesh.group_ranks(Ints{}, 17) == Ints{17});
  CHECK(MeshShape().size() == 1);
}

TEST_CASE("every rank is at its own place in its group, on every set of axes") {
  const MeshShape mesh({3, 1, 2, 4}, {"a", "b", "c", "d"});
  for (unsigned set = 0; set < 16; ++set) {
    Ints axes;
    for (int axis = 0; axis < 4; ++axis)
      if ((set >> axis & 1U) != 0) axes.push_back(axis);
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const Ints group = mesh.group_ranks(axes, rank);
      REQUIRE(static_cast<int>(group.size()) == mesh.group_size(axes));
      REQUIRE(group[static_cast<std::size_t>(mesh.group_rank(axes, rank))] == rank);
      REQUIRE(mesh.group_ranks(axes, group.back()) == group);
      REQUIRE(mesh.rank(mesh.coordinates(rank)) == rank);
    }
  }
}

TEST_CASE("slices keep named axes, flattening joins neighbours and renumbers nobody") {
  const MeshShape mesh({2, 3, 4}, {"pp", "dp", "tp"});
  const std::array<std::string_view, 2> names{"pp", "tp"};
  CHECK(mesh.slice(mesh.axes_of(names)) == MeshShape({2, 4}, {"pp", "tp"}));
  const MeshShape flat = mesh.flatten(Ints{0, 1}, "data");
  CHECK(flat == MeshShape({6, 4}, {"data", "tp"}));
  for (int rank = 0; rank < 24; ++rank) CHECK(flat.group_ranks(Ints{0}, rank) == mesh.group_ranks(Ints{0, 1}, rank));
  CHECK_THROWS_WITH(mesh.flatten(Ints{0, 2}, "x"), Catch::Contains("axes pp+tp of mesh pp=2 x dp=3 x tp=4"));
  const std::array<std::string_view, 2> backwards{"tp", "pp"};
  CHECK_THROWS_WITH(mesh.axes_of(backwards), Catch::Contains("expected them in the order of the mesh"));
}

TEST_CASE("impossible meshes are refused with what came and what was expected") {
  CHECK_THROWS_AS(MeshShape({2}, {"a", "b"}), UsageError);
  CHECK_THROWS_WITH(MeshShape({2, 0}, {"dp", "tp"}), Catch::Contains("axis tp=0, expected 1 or more"));
  CHECK_THROWS_WITH(MeshShape({2, 2}, {"dp", "dp"}), Catch::Contains("two axes are called \"dp\""));
  CHECK_THROWS_AS(MeshShape({2, 2}, {"dp", ""}), UsageError);
  CHECK_THROWS_AS(MeshShape({1 << 20, 1 << 20}, {"dp", "tp"}), UsageError);
  CHECK_THROWS_WITH(MeshShape({2, 2}, {"dp", "tp"}).axis("pp"),
                    Catch::Contains("no axis \"pp\", expected one of: dp, tp"));
  const auto world = create_single_group({});
  CHECK_THROWS_AS(init_device_mesh(*world, {2, 3}, {"dp", "tp"}), UsageError);
  CHECK_THROWS_WITH(init_device_mesh(*world, {2, 3}, {"dp", "tp"}),
                    Catch::Contains("mesh dp=2 x tp=3 has 6 ranks, expected the world size, 1"));
}

TEST_CASE("one rank makes a mesh of any number of axes") {
  const auto world = create_single_group({});
  const DeviceMesh mesh = init_device_mesh(*world, {1, 1}, {"dp", "tp"});
  CHECK(mesh.group("tp").size() == 1);
  CHECK(mesh["dp"].shape() == MeshShape({1}, {"dp"}));
  CHECK(mesh.flatten({"dp", "tp"}, "all").size() == 1);
}
