#include "rendezvous/contract/flight_record.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun {
namespace {

constexpr char kMagic[8] = {'D', 'T', 'R', 'U', 'N', 'F', 'L', 'T'};
constexpr std::uint32_t kVersion = 1;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t capacity;
  std::int32_t rank;
};
static_assert(sizeof(Header) <= kFlightHeader);

std::int64_t now() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

std::byte* mapped(int file) noexcept {
  void* const data = ::mmap(nullptr, kFlightRecordBytes, PROT_READ | PROT_WRITE,
                            file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

// Space on disk is taken at once: a page that could not be written later would be a SIGBUS.
std::byte* mapped_file(const std::string& path) noexcept {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file || ::posix_fallocate(file.value(), 0, kFlightRecordBytes) != 0) return nullptr;
  return mapped(file.value());
}

template <std::size_t N>
std::string text_of(const char (&field)[N]) {
  return std::string(field, ::strnlen(field, N));
}

}  // namespace

FlightRecorder::FlightRecorder(const std::optional<std::string>& path, int rank) {
  if (path && !path->empty()) data_ = mapped_file(*path);
  if (data_ == nullptr) data_ = mapped(-1);
  if (data_ == nullptr) return;
  Header header{{}, kVersion, kFlightCapacity, rank};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  std::memcpy(data_, &header, sizeof header);
}

FlightRecorder::~FlightRecorder() {
  if (data_ != nullptr) ::munmap(data_, kFlightRecordBytes);
}

FlightEntry& FlightRecorder::place(std::uint64_t number) const noexcept {
  return reinterpret_cast<FlightEntry*>(data_ + kFlightHeader)[number % kFlightCapacity];
}

std::uint64_t FlightRecorder::called(FlightEntry entry) noexcept {
  if (data_ == nullptr) return 0;
  FlightEntry& to = place(++last_);
  // Empty while it changes: whoever reads it then takes nothing for something.
  std::atomic_ref(to.number).store(0, std::memory_order_release);
  entry.number = 0;
  entry.called = now();
  entry.finished = 0;
  to = entry;
  std::atomic_ref(to.number).store(last_, std::memory_order_release);
  return last_;
}

void FlightRecorder::finished(std::uint64_t number) noexcept {
  if (data_ == nullptr || number == 0) return;
  FlightEntry& entry = place(number);
  if (std::atomic_ref(entry.number).load(std::memory_order_acquire) != number) return;
  std::atomic_ref(entry.finished).store(now(), std::memory_order_relaxed);
}

const FlightEntry* FlightRecord::telling() const {
  const auto open = std::ranges::find(entries, std::int64_t{0}, &FlightEntry::finished);
  if (open != entries.end()) return &*open;
  return entries.empty() ? nullptr : &entries.back();
}

std::optional<FlightRecord> read_flight_record(const std::string& path) {
  const UniqueFd file(path.empty() ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return {};
  std::vector<std::byte> bytes(kFlightRecordBytes);
  const ssize_t size = ::pread(file.value(), bytes.data(), bytes.size(), 0);
  Header header{};
  if (size < static_cast<ssize_t>(bytes.size())) return {};
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.version != kVersion ||
      header.capacity != kFlightCapacity)
    return {};
  FlightRecord record;
  record.rank = header.rank;
  for (std::uint32_t i = 0; i < kFlightCapacity; ++i) {
    FlightEntry entry;
    std::memcpy(static_cast<void*>(&entry), bytes.data() + kFlightHeader + i * sizeof entry, sizeof entry);
    if (entry.number != 0) record.entries.push_back(entry);
  }
  std::ranges::sort(record.entries, {}, &FlightEntry::number);
  return record;
}

std::string describe(const FlightEntry& entry) {
  std::string text = text_of(entry.op);
  if (const auto dtype = text_of(entry.dtype); !dtype.empty())
    text += " of " + std::to_string(entry.count) + " " + dtype;
  if (entry.peer >= 0)
    text += (text_of(entry.op) == "recv"   ? " from "
             : text_of(entry.op) == "send" ? " to "
                                           : " root ") +
            std::to_string(entry.peer);
  text += " in group " + text_of(entry.group) + " (" + counted(entry.ranks, "rank") + ", call " +
          std::to_string(entry.sequence) + ")";
  if (const auto action = text_of(entry.action); !action.empty()) text += ", " + action;
  return text;
}

}  // namespace dtrun
