#include "worker_runtime/core/memory_account.hpp"

#include <fmt/format.h>

#include <iterator>

namespace dtrun::runtime {

std::string_view name_of(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::param:
      return "param";
    case MemoryTag::grad:
      return "grad";
    case MemoryTag::optimizer:
      return "optimizer";
    case MemoryTag::activation:
      return "activation";
    case MemoryTag::comm:
      return "comm";
    case MemoryTag::work:
      return "work";
  }
  return "?";
}

void MemoryAccount::add(MemoryTag tag, std::size_t bytes) noexcept {
  Entry& entry = entries_[static_cast<std::size_t>(tag)];
  const std::size_t now = entry.current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::size_t peak = entry.peak.load(std::memory_order_relaxed);
  while (now > peak && !entry.peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

void MemoryAccount::remove(MemoryTag tag, std::size_t bytes) noexcept {
  entries_[static_cast<std::size_t>(tag)].current.fetch_sub(bytes, std::memory_order_relaxed);
}

TagBytes MemoryAccount::currents() const noexcept {
  TagBytes result{};
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) result[tag] = current(static_cast<MemoryTag>(tag));
  return result;
}

TagBytes MemoryAccount::peaks() const noexcept {
  TagBytes result{};
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) result[tag] = peak(static_cast<MemoryTag>(tag));
  return result;
}

void MemoryAccount::reset_peaks() noexcept {
  for (Entry& entry : entries_)
    entry.peak.store(entry.current.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

std::string text_of(const TagBytes& bytes) {
  std::string text;
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag)
    text += fmt::format("{}{} {}", tag == 0 ? "" : ", ", name_of(static_cast<MemoryTag>(tag)),
                        bytes_text(static_cast<double>(bytes[tag])));
  return text;
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, kUnits[unit]);
}

}  // namespace dtrun::runtime
