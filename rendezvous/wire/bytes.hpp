// The wire's primitive types: little-endian integers, and strings as u64 length + bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace dtrun::rendezvous {

template <class Integer>
Integer load(const char* from) {
  Integer value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class Integer>
void append_integer(std::string& out, Integer value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

inline void append_bytes(std::string& out, std::string_view bytes) {
  append_integer<std::uint64_t>(out, bytes.size());
  out.append(bytes);
}

}  // namespace dtrun::rendezvous
