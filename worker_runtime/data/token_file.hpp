// Files of ready-made tokens (.bin): 16 bits each, little-endian; raw as nanoGPT writes them, or behind the header of
// llm.c.
#pragma once

#include <cstdint>
#include <string_view>

#include "worker_runtime/data/mapped_file.hpp"

namespace dtrun::runtime {

struct TokenFile {
  const std::byte* data = nullptr;  // of the first token
  std::int64_t tokens = 0;
};

// llm.c's header: 256 numbers of 32 bits: 20240520, version 1, how many tokens follow. Throws UsageError in the name of
// the file for another version, for a count that is not what the file has, for the 32-bit tokens that llm.c has for
// Llama 3, and for an odd size.
TokenFile token_file(const MappedFile& file, std::string_view name);

}  // namespace dtrun::runtime
