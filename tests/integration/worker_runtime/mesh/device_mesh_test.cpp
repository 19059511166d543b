#include "worker_runtime/mesh/device_mesh.hpp"

#include <array>

#include "tests/catch.hpp"
#include "tests/support/run_ranks.hpp"

using namespace dtrun;
using namespace dtrun::runtime;
using test::expect;

namespace {

// The ranks of the world in `group`, as it sees them.
std::vector<std::int64_t> members(ProcessGroup& group, int world_rank) {
  const Tensor mine = group.allocate({1}, DType::i64);
  const Tensor all = group.allocate({group.size()}, DType::i64);
  mine.span<std::int64_t>()[0] = world_rank;
  group.all_gather(all, mine);
  return {all.span<std::int64_t>().begin(), all.span<std::int64_t>().end()};
}
using Ranks = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("a mesh has a group per axis and per set of axes, slices and flattened meshes find the same ranks") {
  const std::string backend = GENERATE("shm", "gloo");
  const auto results = test::run_ranks(
      8,
      [](ProcessGroup& world) {
        const int rank = world.rank();
        const DeviceMesh mesh = init_device_mesh(world, {2, 2, 2}, {"pp", "dp", "tp"});
        expect(&mesh.all() == &world && mesh.rank() == rank, "the world as it is");
        const std::int64_t p = mesh.coordinate("pp"), d = mesh.coordinate("dp"), t = mesh.coordinate("tp");
        expect(p * 4 + d * 2 + t == rank, "row-major coordinates");
        expect(members(mesh.group("tp"), rank) == Ranks{rank - t, rank - t + 1}, "the tp group");
        expect(members(mesh.group("pp"), rank) == Ranks{rank - 4 * p, rank - 4 * p + 4}, "the pp group");
        expect(mesh.group("dp").rank() == d, "the rank in the dp group");
        const std::array<int, 2> ends{0, 2};
        const Ranks across{2 * d, 2 * d + 1, 2 * d + 4, 2 * d + 5};
        expect(members(mesh.group(ends), rank) == across, "the group over pp and tp");
        expect(&mesh.group(ends) == &mesh.group(ends), "one group each");

        const DeviceMesh stage = mesh.slice({"dp", "tp"});
        expect(stage.size() == 4 && stage.rank() == d * 2 + t, "numbers in the slice");
        expect(members(stage.all(), rank) == Ranks{4 * p, 4 * p + 1, 4 * p + 2, 4 * p + 3}, "the slice");
        expect(&stage.group("tp") == &mesh.group("tp"), "no second group for the same ranks");
        expect(&stage["tp"].all() == &mesh.group("tp") && stage["tp"] == mesh["tp"], "a slice of a slice");
        expect(!(stage["tp"] == stage["dp"]), "different slices");
        // Stages go their own ways.
        if (p == 1) {
          const DeviceMesh flat = stage.flatten({"dp", "tp"}, "all");
          expect(&flat.group("all") == &stage.all(), "all ranks of the stage");
        }

        const DeviceMesh flat = mesh.flatten({"pp", "dp"}, "data");
        expect(members(flat.group("data"), rank) == Ranks{t, t + 2, t + 4, t + 6}, "the flattened axis");
        expect(&flat.group("tp") == &mesh.group("tp"), "the other axis");
        expect(members(flat["data"].all(), rank) == Ranks{t, t + 2, t + 4, t + 6}, "a slice of it");
        world.barrier();
      },
      {}, backend);
  for (const auto& result : results) CHECK(result == "");
}
