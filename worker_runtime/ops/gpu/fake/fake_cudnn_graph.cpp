#include "worker_runtime/ops/gpu/fake/fake_cudnn_graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "worker_runtime/kernels/block.hpp"

namespace dtrun::runtime::ops::gpu {
namespace {

using cudnn::Kind;
using cudnn::Pointwise;
using cudnn::Type;
using Index = std::array<std::int64_t, 4>;

template <class Function>
void for_each(const Index& extents, Function f) {
  Index i{};
  for (i[0] = 0; i[0] < extents[0]; ++i[0])
    for (i[1] = 0; i[1] < extents[1]; ++i[1])
      for (i[2] = 0; i[2] < extents[2]; ++i[2])
        for (i[3] = 0; i[3] < extents[3]; ++i[3]) f(i);
}

float rounded(float value, Type type) {
  if (type != Type::bf16) return value;
  kernels::Bf16 narrow{};
  kernels::store(&narrow, value);
  return kernels::load(&narrow);
}

// The values of a tensor, as its strides lay them.
struct Values {
  explicit Values(const CudnnTensor& of)
      : tensor(of), data(static_cast<std::size_t>(of.span()), std::numeric_limits<float>::quiet_NaN()) {}
  const CudnnTensor& tensor;
  std::vector<float> data;

  std::size_t at(const Index& i) const {
    std::int64_t place = 0;
    for (std::size_t d = 0; d < 4; ++d) place += i[d] * tensor.strides[d];
    return static_cast<std::size_t>(place);
  }
  // An extent of 1 is repeated; where there are fewer heads, neighbours share one.
  float read(Index i, std::int64_t heads) const {
    for (std::size_t d = 0; d < 4; ++d) {
      if (tensor.extents[d] == 1) i[d] = 0;
    }
    if (tensor.extents[1] != 1 && tensor.extents[1] != heads) i[1] /= heads / tensor.extents[1];
    return data[at(i)];
  }
  void write(const Index& i, float value) { data[at(i)] = rounded(value, tensor.type); }
};

void load(Values& to, const std::byte* from) {
  for_each(to.tensor.extents, [&](const Index& i) {
    const auto place = to.at(i);
    to.data[place] = to.tensor.type == Type::bf16 ? kernels::load(reinterpret_cast<const kernels::Bf16*>(from) + place)
                                                  : reinterpret_cast<const float*>(from)[place];
  });
}

void store(const Values& from, std::byte* to) {
  for_each(from.tensor.extents, [&](const Index& i) {
    const auto place = from.at(i);
    if (from.tensor.type == Type::bf16) {
      kernels::store(reinterpret_cast<kernels::Bf16*>(to) + place, from.data[place]);
    } else {
      reinterpret_cast<float*>(to)[place] = from.data[place];
    }
  });
}

float combined(Pointwise mode, float x, float b) {
  switch (mode) {
    case Pointwise::add:
      return x + b;
    case Pointwise::sub:
      return x - b;
    case Pointwise::mul:
      return x * b;
    case Pointwise::div:
      return x / b;
    case Pointwise::exp:
      return std::exp(x);
    case Pointwise::log:
      return std::log(x);
    case Pointwise::greater_or_equal:
      return x >= b ? 1.0F : 0.0F;
    default:
      return std::numeric_limits<float>::quiet_NaN();
  }
}

bool has_second(Pointwise mode) { return mode != Pointwise::exp && mode != Pointwise::log && mode != Pointwise::index; }

bool known(Pointwise mode) {
  return mode == Pointwise::index || mode == Pointwise::select || !std::isnan(combined(mode, 1, 1));
}

bool spreads(const CudnnTensor& from, const CudnnTensor& to) {
  for (std::size_t d = 0; d < 4; ++d) {
    if (from.extents[d] != to.extents[d] && from.extents[d] != 1) return false;
  }
  return true;
}

std::string pointwise_problem(const CudnnOperation& op, const CudnnFakeGraph& g) {
  const auto& x = g.tensors.at(op.x);
  const auto& y = g.tensors.at(op.y);
  if (!known(op.mode)) return fmt::format("elementwise operation {}", static_cast<int>(op.mode));
  if ((op.b != 0) != has_second(op.mode) || (op.t != 0) != (op.mode == Pointwise::select)) return "number of operands";
  if ((op.axis >= 0) != (op.mode == Pointwise::index) || op.axis > 3) return "axis";
  if (x.extents != y.extents) return "extents of x and y";
  if (op.b != 0 && !spreads(g.tensors.at(op.b), y)) return "extents of b";
  if (op.t != 0 && (g.tensors.at(op.t).extents != y.extents || g.tensors.at(op.t).type != Type::boolean)) return "t";
  const bool compares = op.mode == Pointwise::greater_or_equal;
  if ((y.type == Type::boolean) != compares || (y.type == Type::i32) != (op.mode == Pointwise::index))
    return "type of the result";
  return {};
}

std::string problem_of(const CudnnOperation& op, const CudnnFakeGraph& g) {
  const auto& x = g.tensors.at(op.x).extents;
  const auto& y = g.tensors.at(op.y).extents;
  switch (op.kind) {
    case Kind::pointwise_operation:
      return pointwise_problem(op, g);
    case Kind::matmul_operation: {
      const auto& b = g.tensors.at(op.b).extents;
      const bool fits = x[0] == b[0] && x[0] == y[0] && x[1] == y[1] && x[1] % b[1] == 0 && x[3] == b[2] &&
                        x[2] == y[2] && b[3] == y[3];
      return fits ? "" : "extents of a product";
    }
    case Kind::reduction_operation: {
      for (std::size_t d = 0; d < 4; ++d) {
        if (y[d] != x[d] && y[d] != 1 && (d != 1 || x[1] % y[1] != 0)) return "extents of a reduction";
      }
      return {};
    }
    case Kind::reshape_operation: {
      auto from = x, to = y;
      std::ranges::sort(from);
      std::ranges::sort(to);
      return from == to && g.tensors.at(op.x).span() == g.tensors.at(op.y).span() ? "" : "extents of a reshape";
    }
    default:
      return "kind of operation";
  }
}

void compute(const CudnnOperation& op, std::map<std::int64_t, Values>& values) {
  const Values& x = values.at(op.x);
  Values& y = values.at(op.y);
  const auto& extents = y.tensor.extents;
  const auto heads = x.tensor.extents[1];
  if (op.kind == Kind::matmul_operation) {
    const Values& b = values.at(op.b);
    for_each(extents, [&](const Index& i) {
      float sum = 0;
      for (std::int64_t k = 0; k < x.tensor.extents[3]; ++k)
        sum += x.data[x.at({i[0], i[1], i[2], k})] * b.read({i[0], i[1], k, i[3]}, heads);
      y.write(i, sum);
    });
  } else if (op.kind == Kind::reduction_operation) {
    const bool max = op.reduce == cudnn::Reduce::max;
    for_each(extents, [&](const Index& i) { y.write(i, max ? -std::numeric_limits<float>::infinity() : 0.0F); });
    const auto share = extents[1] == 1 ? heads : heads / extents[1];
    std::vector<float> total = y.data;  // not rounded in between
    for_each(x.tensor.extents, [&](const Index& i) {
      const Index to{extents[0] == 1 ? 0 : i[0], i[1] / share, extents[2] == 1 ? 0 : i[2], extents[3] == 1 ? 0 : i[3]};
      float& sum = total[y.at(to)];
      sum = max ? std::max(sum, x.data[x.at(i)]) : sum + x.data[x.at(i)];
    });
    for_each(extents, [&](const Index& i) { y.write(i, total[y.at(i)]); });
  } else if (op.kind == Kind::reshape_operation) {
    for (std::size_t i = 0; i < y.data.size(); ++i) y.data[i] = rounded(x.data[i], y.tensor.type);
  } else if (op.mode == Pointwise::index) {
    for_each(extents, [&](const Index& i) { y.write(i, static_cast<float>(i[static_cast<std::size_t>(op.axis)])); });
  } else {
    const Values* const b = op.b == 0 ? nullptr : &values.at(op.b);
    for_each(extents, [&](const Index& i) {
      const float left = x.data[x.at(i)], right = b == nullptr ? 0.0F : b->read(i, extents[1]);
      if (op.mode == Pointwise::select) {
        y.write(i, values.at(op.t).data[y.at(i)] != 0 ? left : right);
      } else {
        y.write(i, combined(op.mode, left, right));
      }
    });
  }
}

}  // namespace

std::int64_t CudnnTensor::span() const {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < 4; ++d) last += (extents[d] - 1) * strides[d];
  return last + 1;
}

bool CudnnFakeGraph::writes(std::int64_t id) const {
  return std::ranges::find(operations, id, &CudnnOperation::y) != operations.end();
}

std::string CudnnFakeGraph::problem() const {
  std::set<std::int64_t> written;
  for (const CudnnOperation& op : operations) {
    for (const std::int64_t id : {op.x, op.b, op.t}) {
      if (id != 0 && !written.contains(id) && (tensors.at(id).is_virtual || writes(id)))
        return fmt::format("tensor {} is read before it is written", id);
    }
    if (tensors.at(op.y).is_value || !written.insert(op.y).second)
      return fmt::format("tensor {} is written twice, or is a value", op.y);
    if (const auto what = problem_of(op, *this); !what.empty())
      return fmt::format("{} (tensors {}, {}, {} to {})", what, op.x, op.b, op.t, op.y);
  }
  return {};
}

bool CudnnFakeGraph::has_engine() const {
  const auto first = std::ranges::find(operations, Kind::matmul_operation, &CudnnOperation::kind);
  return first != operations.end() && tensors.at(first->x).extents[3] % 8 == 0;
}

std::size_t CudnnFakeGraph::workspace_bytes() const { return 256; }

void CudnnFakeGraph::run(const std::map<std::int64_t, std::byte*>& memory) const {
  std::map<std::int64_t, Values> values;
  for (const auto& [id, tensor] : tensors) {
    Values& made = values.try_emplace(id, tensor).first->second;
    if (!tensor.is_virtual && !writes(id)) load(made, memory.at(id));
  }
  for (const CudnnOperation& op : operations) compute(op, values);
  for (const auto& [id, tensor] : tensors) {
    if (tensor.in_memory() && writes(id)) store(values.at(id), memory.at(id));
  }
}

}  // namespace dtrun::runtime::ops::gpu
