// Log lines of agent, server and worker, on stderr: `time level [area] text`. Library code throws or returns instead;
// each fact is logged once, and a warning says what happens next. A successful run prints nothing above debug.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace dtrun::log {

enum class Level { debug, info, warning, error, off };

struct Options {
  Level level = Level::warning;
  // Shown in every line when not empty, for example "rank=3" or "node=host7".
  std::string context;
};

// Call once at program start, before threads. Without it: warnings and errors, no context.
void setup(Options options);
// LOGLEVEL (torchrun's variable: a Python level name, any case) or `fallback`. Unknown names give `fallback`.
Level level_from_environment(Level fallback);

bool enabled(Level level) noexcept;
void write(Level level, std::string_view area, std::string_view text);

template <class... Args>
void debug(std::string_view area, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::debug)) write(Level::debug, area, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(std::string_view area, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::info)) write(Level::info, area, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(std::string_view area, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::warning)) write(Level::warning, area, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(std::string_view area, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::error)) write(Level::error, area, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dtrun::log
