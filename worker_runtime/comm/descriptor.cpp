#include "worker_runtime/comm/descriptor.hpp"

#include <fmt/format.h>

namespace dtrun::runtime {

Descriptor descriptor_of(const Collective& call, std::uint64_t sequence, std::uint64_t count, DType dtype,
                         const CommAction& action) {
  return {.sequence = sequence,
          .count = count,
          .root = call.root,
          .action = action.id,
          .op = static_cast<std::uint8_t>(call.op),
          .dtype = static_cast<std::uint8_t>(dtype),
          .reduce = static_cast<std::uint8_t>(reduces(call.op) ? call.reduce : ReduceOp::sum),
          .reserved = 0,
          .reserved2 = 0};
}

std::string describe(const Descriptor& descriptor, std::array<char, 48> label) {
  label.back() = '\0';
  std::string text(name_of(static_cast<CommOp>(descriptor.op)));
  if (reduces(static_cast<CommOp>(descriptor.op)))
    text += fmt::format(" {}", name_of(static_cast<ReduceOp>(descriptor.reduce)));
  if (descriptor.op != static_cast<std::uint8_t>(CommOp::barrier)) {
    text += fmt::format(" {} x {}", name_of(static_cast<DType>(descriptor.dtype)), descriptor.count);
  }
  if (descriptor.root >= 0) text += fmt::format(" root {}", descriptor.root);
  if (label[0] != '\0' || descriptor.action != 0) {
    text += fmt::format(" ({}{})", label.data(),
                        descriptor.action != 0 ? fmt::format(" action {}", descriptor.action) : "");
  }
  return text;
}

}  // namespace dtrun::runtime
