// safetensors files (format of huggingface/safetensors): 8 bytes little-endian header length, JSON header, raw
// little-endian data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/output_file.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// A tensor that is still to come.
struct TensorDescription {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

// A tensor as the file describes it. `dtype` is the format's spelling ("F32", "BF16", "F16", "I64", ...).
struct SafetensorsEntry {
  std::string dtype;
  Shape shape;
  std::uint64_t begin = 0;  // bytes from the start of the data
  std::uint64_t bytes = 0;
};

// A file open for reading with pread. Everything is checked when it opens: header size (at most 100 MB), JSON, dtypes,
// and that the tensors' ranges fit their shapes, do not overlap and cover the data without holes. Throws Error naming
// file and tensor.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  const std::map<std::string, SafetensorsEntry, std::less<>>& entries() const noexcept { return entries_; }
  const std::map<std::string, std::string, std::less<>>& metadata() const noexcept { return metadata_; }
  bool contains(std::string_view name) const { return entries_.find(name) != entries_.end(); }
  // Throws Error for an unknown name.
  const SafetensorsEntry& entry(std::string_view name) const;

  // The whole tensor into `destination`: equal shape; F32, BF16, F16 and F64 convert to f32, otherwise the types must
  // be equal.
  void read(std::string_view name, const Tensor& destination) const;
  // Row-major elements [first, first + destination.numel()), whatever the destination's shape: a shard reads only its
  // bytes.
  void read_elements(std::string_view name, std::uint64_t first, const Tensor& destination) const;

 private:
  std::string path_;
  UniqueFd file_;
  std::uint64_t data_start_ = 0;
  std::map<std::string, SafetensorsEntry, std::less<>> entries_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

// Writes tensors one after another, which need not exist at the same time. As write_safetensors() otherwise.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<TensorDescription> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  // The next one, as it was described.
  void write(const Tensor& tensor);
  // The next elements of it, all or a part, in any shape.
  void write_elements(const Tensor& part);
  // When all were written. Without it the old file stays.
  void commit();

 private:
  void skip_empty();

  std::vector<TensorDescription> tensors_;
  std::size_t next_ = 0;      // never an empty one
  std::int64_t written_ = 0;  // elements of it
  OutputFile file_;
};

// Writes all tensors in the order given, as a durable OutputFile (what is not a regular file is written directly).
// After a failure the old file is still there. Throws Error (duplicate name) or SystemError.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// Where the parts of a model have the tensors of these names, which may carry `prefix` there. Throws Error that lists
// what is missing.
struct TensorPlace {
  const SafetensorsReader* part;
  std::string name;  // there
};
std::vector<TensorPlace> find_tensors(std::span<const SafetensorsReader> parts, const std::vector<std::string>& wanted,
                                      std::string_view prefix = "transformer.");

// Fills every tensor of `wanted` from the file; names may carry `prefix` there. Throws Error that lists what is
// missing. Tensors of the file that nobody wants (such as attention masks, a tied lm_head) are ignored and their names
// returned.
std::vector<std::string> load_tensors(const SafetensorsReader& reader, const std::vector<NamedTensor>& wanted,
                                      std::string_view prefix = "transformer.");
// The same from the parts of a model that is cut into several files; at least one.
std::vector<std::string> load_tensors(std::span<const SafetensorsReader> parts, const std::vector<NamedTensor>& wanted,
                                      std::string_view prefix = "transformer.");

}  // namespace dtrun::runtime
