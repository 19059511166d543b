// Output of every kind that a worker may write, the same in probe_worker and in the test that looks for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dtrun::tests {

// About `bytes` bytes: lines of any length, empty ones, progress bars, NULs, escape sequences, broken UTF-8, and no
// newline at the end.
inline std::string mixed_output(std::uint64_t seed, std::size_t bytes) {
  std::uint64_t state = seed * 2 + 1;
  const auto random = [&](std::uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  std::string text;
  while (text.size() < bytes) {
    switch (random(8)) {
      case 0:
        text += std::string("\xff\xc3\0\x1b[2J\x80", 8);
        break;
      case 1:
        text += "10%\r20%\r100%\r\n";
        break;
      case 2:
        text += '\n';
        break;
      case 3:
        if (random(64) == 0) text.append(random(200'000), 'L');
        break;
      default:
        text.append(random(200), static_cast<char>('a' + random(26)));
        if (random(4) != 0) text += '\n';
    }
  }
  return text + "the end";
}

}  // namespace dtrun::tests
