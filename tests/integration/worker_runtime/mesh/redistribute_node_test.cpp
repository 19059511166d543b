// Layers split over ranks against the same computation on one: results and gradients.
#include "worker_runtime/mesh/redistribute_node.hpp"

#include "tests/catch.hpp"
#include "tests/integration/worker_runtime/mesh/support.hpp"
#include "worker_runtime/autograd/tape.hpp"

using namespace dtrun;
using namespace dtrun::runtime;
using test::expect;

namespace {

const Placement R = Placement::replicate();
const Placement P = Placement::partial();
Placement S(int dim) { return Placement::shard(dim); }

// y = x W for W [in, out]; plain loops, so that the order of sums is in sight.
Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_b, Arena& arena) {
  const std::int64_t inner = a.dim(1);
  const std::int64_t columns = transpose_b ? b.dim(0) : b.dim(1);
  const Tensor out = Tensor::empty({a.dim(0), columns}, DType::f32, arena);
  for (std::int64_t i = 0; i < a.dim(0); ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < inner; ++k)
        sum += a.data<float>()[i * inner + k] * b.data<float>()[transpose_b ? j * inner + k : k * columns + j];
      out.data<float>()[i * columns + j] = sum;
    }
  return out;
}

class MatmulNode final : public Node {
 public:
  explicit MatmulNode(Tensor weight) : weight_(std::move(weight)) {}
  std::string_view name() const override { return "matmul"; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override {
    return matmul(inputs[0], weight_, false, ctx.activation);
  }
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override {
    grads[0].deliver(ctx, matmul(grad_out, weight_, true, ctx.work));
  }

 private:
  Tensor weight_;
};

struct Problem {
  static constexpr std::int64_t kRows = 5, kIn = 6, kHidden = 7;

  explicit Problem(ProcessGroup& group) {
    std::uint32_t seed = 1;
    for (Tensor* tensor : {&x, &up, &down, &grad}) {
      *tensor = group.allocate(tensor == &x || tensor == &grad ? Shape({kRows, kIn})
                               : tensor == &up                 ? Shape({kIn, kHidden})
                                                               : Shape({kHidden, kIn}),
                               DType::f32);
      // Small integers: every sum is exact, so splitting a sum must not change a bit.
      std::mt19937 random(seed++);
      for (float& value : tensor->span<float>()) value = static_cast<float>(random() % 9) - 4;
    }
  }
  Tensor x, up, down, grad;
};

struct Answer {
  Tensor out, grad;
};

Answer unsharded(const Problem& problem, RunContext& ctx) {
  Tape tape(ctx);
  Value value = tape.apply<MatmulNode>({tape.input(problem.x)}, problem.up);
  value = tape.apply<MatmulNode>({value}, problem.down);
  tape.finish(value);
  return {value.tensor(), tape.backward(problem.grad)};
}

// x (as `stored`) -> `used` -> column-split up -> row-split down -> P -> `stored`.
void compare(ProcessGroup& world, const Layout& stored, const Layout& used, std::optional<GradLayouts> enter,
             std::optional<GradLayouts> leave) {
  MemoryAccount account;
  Arena activation(MemoryTag::activation, account);
  Arena work(MemoryTag::work, account);
  RunContext ctx{activation, work};
  const Problem problem(world);
  const Answer expected = unsharded(problem, ctx);
  const DeviceMesh mesh = init_device_mesh(world, {world.size()}, {"tp"});
  const Shape shape = problem.x.shape();
  const DTensor up = distribute_tensor(problem.up, mesh, Layout({S(1)}));
  const DTensor down = distribute_tensor(problem.down, mesh, Layout({S(0)}));
  const DTensor x = distribute_tensor(problem.x, mesh, stored);

  Tape tape(ctx);
  Value value = tape.apply<RedistributeNode>({tape.input(x.local())}, mesh, shape, stored, used, enter);
  value = tape.apply<MatmulNode>({value}, up.local());
  value = tape.apply<MatmulNode>({value}, down.local());
  value = tape.apply<RedistributeNode>({value}, mesh, shape, Layout({P}), stored, leave);
  tape.finish(value);
  const std::string what = stored.to_string() + " on " + std::to_string(world.size()) + " ranks";
  expect(test::same_bits(value.tensor(), test::cut(world, expected.out, x.box())), "the result of " + what);
  const Tensor grad = tape.backward(test::cut(world, problem.grad, x.box()));
  expect(test::same_bits(grad, test::cut(world, expected.grad, x.box())), "the gradient of " + what);
}

}  // namespace

TEST_CASE("column-split and row-split layers give the results and gradients of the whole ones") {
  const int n = GENERATE(1, 2, 3, 4);
  const auto results = test::run_ranks(n, [](ProcessGroup& world) {
    // Tensor parallelism: the input is replicated, and so is the gradient that comes in.
    compare(world, Layout({R}), Layout({R}), GradLayouts{Layout({R}), Layout({P})},
            GradLayouts{Layout({R}), Layout({R})});
    // Sequence parallelism, over rows and over columns: the plain adjoint.
    compare(world, Layout({S(0)}), Layout({R}), std::nullopt, std::nullopt);
    compare(world, Layout({S(1)}), Layout({R}), std::nullopt, std::nullopt);
  });
  for (const auto& result : results) CHECK(result == "");
}

TEST_CASE("a value that is used as it is and redistributed adds both gradients and changes neither") {
  const auto results = test::run_ranks(2, [](ProcessGroup& world) {
    class Add final : public Node {
      std::string_view name() const override { return "add"; }
      Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override {
        const Tensor out = Tensor::empty(inputs[0].shape(), DType::f32, ctx.activation);
        for (std::size_t i = 0; i < out.span<float>().size(); ++i)
          out.span<float>()[i] = inputs[0].span<float>()[i] + inputs[1].span<float>()[i];
        return out;
      }
      void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override {
        for (InputGrad& grad : grads)
          if (grad.needed) grad.deliver(ctx, grad_out, true);
      }
    };
    MemoryAccount account;
    Arena activation(MemoryTag::activation, account);
    Arena work(MemoryTag::work, account);
    RunContext ctx{activation, work};
    const DeviceMesh mesh = init_device_mesh(world, {2}, {"tp"});
    const Tensor x = world.allocate({3}, DType::f32);
    x.zero();
    const Tensor grad = world.allocate({3}, DType::f32);
    for (float& value : grad.span<float>()) value = static_cast<float>(world.rank() + 1);
    // y = x + x. Once each rank has a part of the second x's gradient, once it has all of it and nothing moves.
    for (const Layout& after : {Layout({P}), Layout({R})}) {
      Tape tape(ctx);
      const Value in = tape.input(x);
      const Value same = tape.apply<RedistributeNode>({in}, mesh, x.shape(), Layout({R}), Layout({R}),
                                                      GradLayouts{Layout({R}), after});
      tape.finish(tape.apply<Add>({in, same}));
      const Tensor result = tape.backward(grad);
      const int own = world.rank() + 1;
      const int second = after.has_partial() ? 3 : own;
      for (const float value : result.span<float>())
        expect(value == static_cast<float>(own + second), "both gradients");
      for (const float value : grad.span<float>()) expect(value == static_cast<float>(own), "grad_out unchanged");
    }
  });
  for (const auto& result : results) CHECK(result == "");
}
