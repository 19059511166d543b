#include "worker_runtime/worker/progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace dtrun::runtime {
namespace {

constexpr std::int64_t kBarWidth = 30;
constexpr auto kRedraw = std::chrono::milliseconds(100);

std::string time_left(std::int64_t done, std::int64_t total, Clock::duration elapsed) {
  if (done <= 0 || done >= total) return {};
  const double seconds =
      std::chrono::duration<double>(elapsed).count() / static_cast<double>(done) * static_cast<double>(total - done);
  return seconds < 120 ? fmt::format("  {:.0f} s left", seconds) : fmt::format("  {:.0f} min left", seconds / 60);
}

std::string count(std::int64_t done, std::int64_t total) {
  return fmt::format("{:>{}}/{}", done, fmt::formatted_size("{}", total), total);
}

}  // namespace

std::string progress_line(const ProgressPoint& point, std::int64_t total, Clock::duration elapsed) {
  return fmt::format("step {}  loss {:.4f}  grad norm {:.3g}  lr {:.2e}  {:.0f} tokens/s{}", count(point.done, total),
                     point.loss, point.grad_norm, point.lr, point.tokens_per_second,
                     time_left(point.done, total, elapsed));
}

std::string progress_bar(const ProgressPoint& point, std::int64_t total, Clock::duration elapsed) {
  const auto full = static_cast<std::size_t>(
      std::clamp<std::int64_t>(point.done * kBarWidth / std::max<std::int64_t>(total, 1), 0, kBarWidth));
  return fmt::format("[{}{}] {}  loss {:.4f}  {:.0f} tokens/s{}", std::string(full, '#'),
                     std::string(kBarWidth - full, ' '), count(point.done, total), point.loss, point.tokens_per_second,
                     time_left(point.done, total, elapsed));
}

Progress::Progress(std::int64_t total, std::int64_t every, bool terminal, bool silent)
    : total_(total),
      every_(every > 0 ? every : std::max<std::int64_t>(1, (total + 19) / 20)),
      terminal_(terminal),
      silent_(silent) {}

void Progress::show(const ProgressPoint& point) {
  if (silent_) return;
  const auto now = Clock::now();
  if (terminal_) {
    if (point.done < total_ && now - last_ < kRedraw) return;
    last_ = now;
    fmt::print("\r{}\x1b[K", progress_bar(point, total_, now - start_));
  } else {
    if (point.done % every_ != 0 && point.done != total_ && point.done != 1) return;
    fmt::print("{}\n", progress_line(point, total_, now - start_));
  }
  std::fflush(stdout);
}

void Progress::finish() {
  if (silent_ || !terminal_) return;
  fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace dtrun::runtime
