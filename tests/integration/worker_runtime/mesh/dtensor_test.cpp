// Redistribution between ranks as threads: any chain of layouts on any mesh gives back the tensor, bit by bit; sums are
// those of one process in rank order; what is sent is what the plan says.
#include "worker_runtime/mesh/dtensor.hpp"

#include <array>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/integration/worker_runtime/mesh/support.hpp"

using namespace dtrun;
using namespace dtrun::runtime;
using test::expect;

namespace {

const Placement R = Placement::replicate();
const Placement P = Placement::partial();
Placement S(int dim) { return Placement::shard(dim); }

std::string on_the_way(const DTensor& from, const Layout& to) {
  return from.layout().to_string() + " -> " + to.to_string() + " of " + from.shape().to_string() + " on " +
         from.mesh().shape().to_string();
}

// Redistributes, and compares what the groups counted with the prediction.
DTensor counted(const DTensor& from, const Layout& to, const RedistributeOptions& options = {}) {
  const DeviceMesh& mesh = from.mesh();
  const RedistributePlan plan = plan_redistribute(from.shape(), from.dtype(), from.layout(), to, mesh.shape());
  std::map<std::string, std::uint64_t> before;
  for (const RedistributeStep& step : plan.steps) {
    mesh.group(step.axes);  // made here, so that making it is not counted
  }
  for (const RedistributeStep& step : plan.steps)
    before[mesh.shape().label(step.axes)] = mesh.group(step.axes).bytes_sent_total();
  const DTensor result = from.redistribute(to, options);
  auto predicted = plan.bytes_by_axes(mesh.rank());
  for (const RedistributeStep& step : plan.steps) {
    const std::string label = mesh.shape().label(step.axes);
    const std::uint64_t sent = mesh.group(step.axes).bytes_sent_total() - before[label];
    expect(sent == predicted[label], on_the_way(from, to) + ": " + std::to_string(predicted[label]) + " bytes on " +
                                         label + ", sent " + std::to_string(sent));
  }
  return result;
}

void chain(const DeviceMesh& mesh, std::mt19937& random) {
  const std::array<DType, 5> dtypes{DType::f32, DType::bf16, DType::i64, DType::f32, DType::u8};
  const Shape shape = test::random_shape(random);
  const int axes = mesh.shape().axes();
  const Tensor full = mesh.all().allocate(shape, dtypes[random() % dtypes.size()]);
  test::fill_random(full, static_cast<std::uint32_t>(random()));
  DTensor now = distribute_tensor(full, mesh, test::random_layout(random, axes, shape.rank(), false));
  for (int link = 0; link < 5; ++link) {
    const Layout to = test::random_layout(random, axes, shape.rank(), true);
    const std::string what = on_the_way(now, to);
    const Tensor untouched = mesh.all().allocate(now.local().shape(), now.dtype());
    untouched.copy_from(now.local());
    const auto how = random() % 3;
    RedistributeOptions options{.consume = how == 1};
    if (how == 2) options.out = mesh.all().allocate(local_box(shape, to, mesh.shape(), mesh.rank()).shape, now.dtype());
    const DTensor next = counted(now, to, options);
    if (how != 1) expect(test::same_bits(untouched, now.local()), what + " leaves its input alone");
    const bool moves = !plan_redistribute(shape, now.dtype(), now.layout(), to, mesh.shape()).steps.empty();
    if (how == 0) expect(moves == (next.local().storage() != now.local().storage()), what + " shares nothing");
    if (how == 2) expect(next.local().raw() == options.out.raw(), what + " goes where it was asked to");
    if (!to.has_partial()) expect(test::same_bits(next.local(), test::cut(mesh.all(), full, next.box())), what);
    now = next;
  }
  expect(test::same_bits(now.full_tensor(), full), "the whole tensor after " + now.layout().to_string());
}

// What rank `place` of those that sum adds to element `index`.
float addend(std::int64_t index, int place) {
  std::uint32_t x = static_cast<std::uint32_t>(index) * 2654435761U + static_cast<std::uint32_t>(place) * 40503U + 977U;
  x = (x ^ x >> 15) * 2246822519U;
  return static_cast<float>(x ^ x >> 13) * 1e-3F - 2e6F;
}

template <class Function>
void for_each_element(const Shape& shape, const Box& box, Function function) {
  std::vector<std::int64_t> at(static_cast<std::size_t>(shape.rank()));
  for (std::int64_t i = 0; i < box.numel(); ++i) {
    std::int64_t left = i;
    for (int dim = shape.rank() - 1; dim >= 0; --dim) {
      at[static_cast<std::size_t>(dim)] = box.offset[static_cast<std::size_t>(dim)] + left % box.shape[dim];
      left /= box.shape[dim];
    }
    std::int64_t index = 0;
    for (int dim = 0; dim < shape.rank(); ++dim) index = index * shape[dim] + at[static_cast<std::size_t>(dim)];
    function(i, index);
  }
}

void sum(const DeviceMesh& mesh, std::mt19937& random) {
  const Shape shape = test::random_shape(random);
  const int axes = mesh.shape().axes();
  const Layout from = test::random_layout(random, axes, shape.rank(), true);
  const Layout to = test::random_layout(random, axes, shape.rank(), false);
  const std::vector<int> summing = from.partial_axes();
  const Box before = local_box(shape, from, mesh.shape(), mesh.rank());
  const Tensor local = mesh.all().allocate(before.shape, DType::f32);
  for_each_element(shape, before, [&](std::int64_t i, std::int64_t index) {
    local.span<float>()[static_cast<std::size_t>(i)] = addend(index, mesh.shape().group_rank(summing, mesh.rank()));
  });
  const DTensor partial = DTensor::from_local(local, shape, mesh, from);
  const DTensor result = counted(partial, to);
  for_each_element(shape, result.box(), [&](std::int64_t i, std::int64_t index) {
    float expected = addend(index, 0);
    for (int place = 1; place < mesh.shape().group_size(summing); ++place) expected += addend(index, place);
    expect(result.local().span<float>()[static_cast<std::size_t>(i)] == expected,
           on_the_way(partial, to) + ": the sum in rank order in element " + std::to_string(index));
  });
}

// <to, y> over all ranks is <from, adjoint of y>: integers, so that every sum is exact.
void inner_product(const DeviceMesh& mesh, std::mt19937& random) {
  const Shape shape = test::random_shape(random);
  const int axes = mesh.shape().axes();
  const auto make = [&](const Layout& layout, std::uint32_t seed) {
    const Tensor local = mesh.all().allocate(local_box(shape, layout, mesh.shape(), mesh.rank()).shape, DType::f32);
    // Replicas must agree, everything else is each rank's own: the seed follows the coordinates that matter.
    std::uint32_t own = seed;
    for (int axis = 0; axis < axes; ++axis)
      own = own * 31 + (layout[axis].is_replicate() ? 0 : static_cast<std::uint32_t>(mesh.coordinate(axis)));
    std::mt19937 values(own);
    for (float& value : local.span<float>()) value = static_cast<float>(values() % 7) - 3;
    return DTensor::from_local(local, shape, mesh, layout);
  };
  const Layout from = test::random_layout(random, axes, shape.rank(), true);
  const Layout to = test::random_layout(random, axes, shape.rank(), true);
  const DTensor x = make(from, static_cast<std::uint32_t>(random()));
  const DTensor y = make(adjoint(to), static_cast<std::uint32_t>(random()));
  const Tensor there = x.redistribute(to).local();
  const Tensor back = y.redistribute(adjoint(from)).local();
  const Tensor products = mesh.all().allocate({2}, DType::f32);
  products.zero();
  for (std::size_t i = 0; i < there.span<float>().size(); ++i)
    products.span<float>()[0] += there.span<float>()[i] * y.local().span<float>()[i];
  for (std::size_t i = 0; i < back.span<float>().size(); ++i)
    products.span<float>()[1] += x.local().span<float>()[i] * back.span<float>()[i];
  mesh.all().all_reduce(products);
  expect(products.span<float>()[0] == products.span<float>()[1], on_the_way(x, to) + " has the adjoint");
}

template <class Property>
void on_every_mesh(const std::string& backend, int rounds, std::uint32_t seed, Property property) {
  for (const test::MeshCase& which : test::kMeshes) {
    const auto results = test::run_ranks(
        which.size(),
        [&](ProcessGroup& world) {
          const DeviceMesh mesh = init_device_mesh(world, which.extents, which.names);
          std::mt19937 random(seed);
          for (int round = 0; round < rounds; ++round) property(mesh, random);
        },
        {.timeout = std::chrono::seconds(20)}, backend);
    for (const auto& result : results) CHECK(result == "");
  }
}

}  // namespace

TEST_CASE("a tensor is the same bits after any chain of layouts, and sends what the plan says") {
  on_every_mesh("shm", 150, 1, chain);
}

TEST_CASE("a tensor is the same bits after any chain of layouts, over gloo") { on_every_mesh("gloo", 15, 2, chain); }

TEST_CASE("sums are in rank order over all partial axes, whatever the layouts") { on_every_mesh("shm", 200, 3, sum); }

TEST_CASE("gradients go back by the adjoint of every redistribution") { on_every_mesh("shm", 200, 4, inner_product); }

TEST_CASE("one rank has the tensor, and each gets its part") {
  on_every_mesh("shm", 20, 5, [](const DeviceMesh& mesh, std::mt19937& random) {
    const Shape shape = test::random_shape(random);
    const Layout layout = test::random_layout(random, mesh.shape().axes(), shape.rank(), false);
    const int source = static_cast<int>(random() % static_cast<unsigned>(mesh.size()));
    const Tensor full = mesh.all().allocate(shape, DType::f32);
    test::fill_random(full, static_cast<std::uint32_t>(random()));
    const DTensor sent =
        distribute_from(source, mesh.rank() == source ? full : Tensor(), shape, DType::f32, mesh, layout);
    expect(test::same_bits(sent.local(), test::cut(mesh.all(), full, sent.box())), "the part of " + layout.to_string());
  });
}

TEST_CASE("even cuts of the outermost dimension go straight into the collective and out of it") {
  struct Row {
    Shape shape;
    Layout from, to;
    std::size_t staging;  // bytes
  };
  const std::vector<Row> rows{
      {{64, 64}, Layout({S(0)}), Layout({R}), 0},
      {{64, 64}, Layout({P}), Layout({S(0)}), 0},
      {{64, 64}, Layout({P}), Layout({R}), 0},
      {{62, 64}, Layout({S(0)}), Layout({R}), 0},  // its short part is padded in the result
      {{62, 64}, Layout({P}), Layout({S(0)}), 64 * 64 * 4},
      {{64, 64}, Layout({S(0)}), Layout({S(1)}), 16 * 64 * 4},  // columns are packed; rows arrive in place
      {{64, 64}, Layout({S(1)}), Layout({S(0)}), 16 * 64 * 4},
      {{64, 64}, Layout({S(1)}), Layout({R}), 64 * 64 * 4}};
  for (const Row& row : rows) {
    std::array<MemoryAccount, 4> accounts;
    const tests::TempDirectory directory;
    std::vector<std::thread> threads;
    std::array<std::string, 4> errors;
    for (int rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&, rank] {
        const auto at = static_cast<std::size_t>(rank);
        const auto check = [&](ProcessGroup& world) {
          const DeviceMesh mesh = init_device_mesh(world, {4}, {"dp"});
          const Box box = local_box(row.shape, row.from, mesh.shape(), rank);
          const Tensor local = world.allocate(box.shape, DType::f32, MemoryTag::work);
          local.zero();
          accounts[at].reset_peaks();
          const std::size_t before = accounts[at].current(MemoryTag::comm);
          DTensor::from_local(local, row.shape, mesh, row.from).redistribute(row.to);
          const std::size_t staging = accounts[at].peak(MemoryTag::comm) - before;
          expect(staging == row.staging, row.from.to_string() + " -> " + row.to.to_string() + " takes " +
                                             std::to_string(row.staging) + " bytes on the way, found " +
                                             std::to_string(staging));
        };
        errors[at] = test::run_rank(directory.path(), rank, 4, check, {.account = &accounts[at]}, "shm");
      });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("flat memory with room for the padding goes in and out without a copy, uneven and empty parts too") {
  const auto results = test::run_ranks(4, [](ProcessGroup& world) {
    const DeviceMesh mesh = init_device_mesh(world, {4}, {"dp"});
    const Layout shard({S(0)});
    for (const std::int64_t rows : {1, 3, 5, 6, 8, 63}) {
      const Shape shape({rows, 40});
      const Tensor full = world.allocate(shape, DType::f32);
      test::fill_random(full, static_cast<std::uint32_t>(rows));
      const RedistributePlan gather = plan_redistribute(shape, DType::f32, shard, Layout({R}), mesh.shape());
      const FlatSizes sizes = flat_sizes(gather, mesh.rank());
      const std::int64_t part = (rows + 3) / 4 * 40;
      expect(sizes.input == part && sizes.output == 4 * part, "parts of the ceiling");
      const Tensor all = world.allocate({4 * part}, DType::f32);
      all.zero();
      all.narrow(0, full.numel()).copy_from(full.view({full.numel()}));
      const Tensor own = world.allocate({part}, DType::f32);
      own.copy_from(all.narrow(mesh.rank() * part, part));
      all.zero();
      const Tensor gathered = Redistribution(mesh, gather, own, {.out = all}).wait();
      expect(gathered.raw() == all.raw() && test::same_bits(gathered, full), "the whole tensor, in its place");

      // Four times the same, summed: exact.
      const RedistributePlan reduce = plan_redistribute(shape, DType::f32, Layout({P}), shard, mesh.shape());
      expect(flat_sizes(reduce, mesh.rank()).input == 4 * part, "the sizes the other way round");
      const Box box = local_box(shape, shard, mesh.shape(), mesh.rank());
      const Tensor sums = Redistribution(mesh, reduce, all, {.out = own}).wait();
      expect(sums.raw() == own.raw() && sums.shape() == box.shape, "the sum, in its place");
      const Tensor expected = test::cut(world, full, box);
      for (float& value : expected.span<float>()) value *= 4;
      for (std::size_t i = 0; i < expected.span<float>().size(); ++i)
        expect(sums.span<float>()[i] == expected.span<float>()[i], "four times the value");
    }
    const auto sizes_of = [&](const Layout& from, const Layout& to) {
      return flat_sizes(plan_redistribute({8, 8}, DType::f32, from, to, mesh.shape()), mesh.rank());
    };
    expect(sizes_of(Layout({S(1)}), Layout({R})).output == 0, "columns are not in order");
    expect(sizes_of(Layout({P}), Layout({R})).input == 0, "nothing is padded for an all_reduce");
  });
  for (const auto& result : results) CHECK(result == "");
}

TEST_CASE("a redistribution started on a group with its own thread is waited for later") {
  const auto results = test::run_ranks(
      4,
      [](ProcessGroup& world) {
        const DeviceMesh mesh = init_device_mesh(world, {2, 2}, {"dp", "tp"});
        const Layout stored({S(0), S(0)}, {1, 0});
        const Layout used({R, S(0)});
        std::vector<Tensor> full;
        std::vector<Redistribution> running;
        for (std::uint32_t i = 0; i < 8; ++i) {
          full.push_back(world.allocate({37 + i, 100}, DType::f32));
          test::fill_random(full.back(), i);
          const DTensor part = distribute_tensor(full.back(), mesh, stored);
          running.emplace_back(mesh, plan_redistribute(part.shape(), part.dtype(), stored, used, mesh.shape()),
                               part.local());
        }
        for (std::size_t i = 0; i < running.size(); ++i) {
          const Box box = local_box(full[i].shape(), used, mesh.shape(), mesh.rank());
          expect(test::same_bits(running[i].wait(), test::cut(world, full[i], box)), "the part that is used");
          expect(running[i].wait().raw() == running[i].wait().raw(), "the same tensor on every call");
        }
      },
      {.comm_thread = true});
  for (const auto& result : results) CHECK(result == "");
}

TEST_CASE("what cannot be is refused before anything is sent") {
  const auto results = test::run_ranks(2, [](ProcessGroup& world) {
    const DeviceMesh mesh = init_device_mesh(world, {2}, {"dp"});
    const Tensor four = world.allocate({4}, DType::f32);
    const auto refused = [](const std::string& text, auto&& function) {
      try {
        function();
      } catch (const ShapeError& error) {
        expect(std::string(error.what()).find(text) != std::string::npos, text + " in: " + error.what());
        return;
      }
      expect(false, "an error with " + text);
    };
    refused("a partial axis", [&] { distribute_tensor(four, mesh, Layout({P})); });
    refused("expected [2]", [&] { DTensor::from_local(four, {4}, mesh, Layout({S(0)})); });
    refused("undefined", [&] { DTensor::from_local({}, {4}, mesh, Layout({S(0)})); });
    const DTensor whole = distribute_tensor(four, mesh, Layout({R}));
    refused("S(1) on axis dp", [&] { whole.redistribute(Layout({S(1)})); });
    refused("the tensor for the result", [&] { whole.redistribute(Layout({S(0)}), {.out = four}); });
    const RedistributePlan plan = plan_redistribute({4}, DType::i32, Layout({R}), Layout({S(0)}), mesh.shape());
    refused("is f32 [4], expected i32 [4]", [&] { Redistribution(mesh, plan, four); });
    const RedistributePlan other =
        plan_redistribute({4}, DType::f32, Layout({R}), Layout({S(0)}), MeshShape({2}, {"tp"}));
    refused("a plan for mesh tp=2", [&] { Redistribution(mesh, other, four); });
    world.barrier();
  });
  for (const auto& result : results) CHECK(result == "");
}
