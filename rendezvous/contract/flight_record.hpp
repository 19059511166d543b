// What a rank's collectives were, for whoever looks after it died or hangs: a ring of the last ones in a file that
// DTRUN_FLIGHT_RECORD names, mapped into the worker's memory. So it tells the truth after kill -9 too, and writing it
// is no system call. Little-endian, as the machine's own; a reader trusts nothing that it finds.
//
//   64 bytes   "DTRUNFLT", u32 version 1, u32 capacity, i32 rank, zeros
//   capacity x FlightEntry; number n is at place n % capacity
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrun {

// Its name in the rank's log directory.
inline constexpr std::string_view kFlightRecordName = "flight";

// Text is cut, and ends with a zero.
struct FlightEntry {
  std::uint64_t number = 0;    // from 1, of the process; 0: nothing here
  std::int64_t called = 0;     // nanoseconds since 1970
  std::int64_t finished = 0;   // the same; 0: not yet
  std::uint64_t count = 0;     // elements of one rank's part
  std::uint64_t sequence = 0;  // of the calls of its group, from 0
  std::int32_t peer = -1;      // root, source or destination
  std::uint32_t ranks = 0;     // of the group
  char op[16] = {};            // "all_reduce"
  char dtype[8] = {};
  char group[24] = {};
  char action[48] = {};  // what it was for: "step 3, REDUCE blocks.1"
};
static_assert(sizeof(FlightEntry) == 144);

inline constexpr std::uint32_t kFlightCapacity = 256;
inline constexpr std::size_t kFlightHeader = 64;
inline constexpr std::size_t kFlightRecordBytes = kFlightHeader + kFlightCapacity * sizeof(FlightEntry);

// Copies `text` into a field, cut.
template <std::size_t N>
void set_text(char (&field)[N], std::string_view text) {
  const std::size_t length = text.size() < N ? text.size() : N - 1;
  if (length > 0) std::memcpy(field, text.data(), length);
  std::memset(field + length, 0, N - length);
}

// Owner: the worker's session. called() is for one thread, finished() for any. Without a file, or when it cannot be
// made, the ring is in memory: training does not depend on it.
class FlightRecorder {
 public:
  FlightRecorder(const std::optional<std::string>& path, int rank);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;
  ~FlightRecorder();

  // Notes the entry with the time of now; returns its number.
  std::uint64_t called(FlightEntry entry) noexcept;
  // Nothing when the entry has been overwritten.
  void finished(std::uint64_t number) noexcept;

 private:
  FlightEntry& place(std::uint64_t number) const noexcept;
  std::byte* data_ = nullptr;  // null when there is no memory either
  std::uint64_t last_ = 0;
};

struct FlightRecord {
  int rank = 0;
  std::vector<FlightEntry> entries;  // oldest first

  // What it was in when it was last seen: the oldest of the last calls that had not finished, else the last that had.
  const FlightEntry* telling() const;
};

// Nothing when there is no such file, or it is no flight record.
std::optional<FlightRecord> read_flight_record(const std::string& path);
// "all_reduce of 1024 f32 in group dp (4 ranks, call 17), step 3, REDUCE blocks.1"
std::string describe(const FlightEntry& entry);

}  // namespace dtrun
