#include "worker_runtime/ops/copy.hpp"

#include <fmt/format.h>

#include <cstring>

#include "worker_runtime/device/device.hpp"
#include "worker_runtime/ops/checks.hpp"

namespace dtrun::runtime::ops {
namespace {

void check(std::string_view name, const Tensor& x, std::size_t first, std::size_t pitch, const RowCopy& copy) {
  const bool apart = copy.rows <= 1 || pitch >= copy.bytes;
  if (apart && first + (copy.rows - 1) * pitch + copy.bytes <= x.bytes()) return;
  throw ShapeError("ops", fmt::format("copy_rows: {} rows of {} bytes at {}, {} apart, do not fit the {} of {} bytes",
                                      copy.rows, copy.bytes, first, pitch, name, x.bytes()));
}

}  // namespace

void copy_rows(const Tensor& source, const Tensor& destination, const RowCopy& copy) {
  if (copy.rows == 0 || copy.bytes == 0) return;
  check("source", source, copy.from, copy.from_pitch, copy);
  check("destination", destination, copy.to, copy.to_pitch, copy);
  const auto on_device = [&] {
    device_of(*source.storage())
        ->copy_rows(destination.device_raw() + copy.to, copy.to_pitch, source.device_raw() + copy.from, copy.from_pitch,
                    copy.bytes, copy.rows);
  };
  if (ran_elsewhere("copy_rows", on_device, source, destination)) return;
  for (std::size_t i = 0; i < copy.rows; ++i) {
    std::memcpy(destination.raw() + copy.to + i * copy.to_pitch, source.raw() + copy.from + i * copy.from_pitch,
                copy.bytes);
  }
}

void copy_columns(const Tensor& x, std::int64_t first, const Tensor& y) {
  if (x.rank() != 2 || y.rank() != 2 || x.dtype() != y.dtype() || x.dim(0) != y.dim(0) || first < 0 ||
      first + y.dim(1) > x.dim(1)) {
    throw ShapeError(
        "ops", fmt::format("copy_columns: y is {} {}, expected columns from {} on of x, {} {}", name_of(y.dtype()),
                           y.shape().to_string(), first, name_of(x.dtype()), x.shape().to_string()));
  }
  const auto bytes = [&](std::int64_t elements) { return static_cast<std::size_t>(elements) * size_of(x.dtype()); };
  copy_rows(x, y,
            {.rows = static_cast<std::size_t>(y.dim(0)),
             .bytes = bytes(y.dim(1)),
             .from = bytes(first),
             .from_pitch = bytes(x.dim(1)),
             .to_pitch = bytes(y.dim(1))});
}

}  // namespace dtrun::runtime::ops
