#include "worker_runtime/checkpoint/save_talk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

constexpr auto kSlice = std::chrono::milliseconds(100);  // how late a stop or another rank's failure may be seen

std::string part(int rank) { return fmt::format("part/{}", rank); }

}  // namespace

SaveTalk::SaveTalk(rendezvous::Store& store, std::uint64_t number, int world, Deadline deadline,
                   const std::atomic<bool>& stop)
    : store_(store),
      prefix_(fmt::format("checkpoint/{}/", number)),
      world_(world),
      deadline_(deadline),
      stop_(stop),
      heard_(static_cast<std::size_t>(world)) {}

std::string SaveTalk::key(std::string_view word) const { return prefix_ + std::string(word); }

std::optional<std::string> SaveTalk::listen(std::string_view word) {
  try {
    return store_.get(key(word), kSlice);
  } catch (const TimeoutError&) {
    return std::nullopt;
  }
}

void SaveTalk::check_patience(std::string_view missing) const {
  if (stop_) throw Error("checkpoint", "the run ended before it was saved");
  if (deadline_.passed()) throw TimeoutError("checkpoint", fmt::format("{} in time", missing));
}

std::string SaveTalk::await(std::string_view word, std::string_view missing) {
  for (;;) {
    if (auto text = listen(word)) return *std::move(text);
    check_patience(missing);
  }
}

std::string SaveTalk::await_part(int rank) {
  for (;;) {
    if (auto text = listen(part(rank))) {
      heard_[static_cast<std::size_t>(rank)] = true;
      store_.delete_key(key(part(rank)));
      return *std::move(text);
    }
    if (const std::string failed = key("failed"); store_.check(std::span(&failed, 1)))
      throw Error("checkpoint", store_.get(failed, kSlice));
    check_patience(fmt::format("rank {} did not write its part", rank));
  }
}

void SaveTalk::await_all_parts(Clock::duration limit) noexcept {
  try {
    const auto mine = Deadline::after(limit);
    for (int rank = 0; rank < world_; ++rank)
      while (!heard_[static_cast<std::size_t>(rank)] && !stop_ && !deadline_.passed() && !mine.passed())
        heard_[static_cast<std::size_t>(rank)] = listen(part(rank)).has_value();
  } catch (const std::exception&) {  // the store is gone, and so are the others
  }
}

void SaveTalk::leave() noexcept {
  try {
    if (store_.add(key("left"), 1) != world_) return;
    for (int rank = 0; rank < world_; ++rank) store_.delete_key(key(part(rank)));
    for (const auto* word : {"start", "failed", "outcome", "left"}) store_.delete_key(key(word));
  } catch (const std::exception&) {  // nobody needs them
  }
}

}  // namespace dtrun::runtime
