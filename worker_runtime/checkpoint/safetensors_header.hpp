// The JSON header of a safetensors file, as text. No files here, so that it can be fuzzed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/checkpoint/safetensors.hpp"

namespace dtrun::runtime {

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry, std::less<>> entries;
  std::map<std::string, std::string, std::less<>> metadata;
};

// The bytes of one element; 0 for an unknown spelling.
std::size_t safetensors_element_size(std::string_view dtype) noexcept;
std::string_view safetensors_dtype(DType dtype) noexcept;

// Checks everything against the number of bytes that follow the header. Throws Error; `path` is for its message.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes, const std::string& path);

// The header of these tensors laid out one after another, padded with spaces to a multiple of 8. Throws Error for a
// duplicate name.
std::string make_safetensors_header(const std::vector<TensorDescription>& tensors,
                                    const std::map<std::string, std::string>& metadata);

}  // namespace dtrun::runtime
