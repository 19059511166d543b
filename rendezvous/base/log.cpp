#include "rendezvous/base/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>

#include "rendezvous/base/env.hpp"

namespace dtrun::log {
namespace {

constexpr auto kPattern = "%Y-%m-%d %H:%M:%S.%e %l ";

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug: return spdlog::level::debug;
    case Level::info: return spdlog::level::info;
    case Level::warning: return spdlog::level::warn;
    case Level::error: return spdlog::level::err;
    case Level::off: break;
  }
  return spdlog::level::off;
}

// Made at the first line that is written: a quiet run never pays for it.
struct State {
  Options options;
  std::unique_ptr<spdlog::logger> logger;

  spdlog::logger& get() {
    if (!logger) {
      logger = std::make_unique<spdlog::logger>("dtrun", std::make_shared<spdlog::sinks::stderr_sink_mt>());
      logger->set_level(to_spdlog(options.level));
      logger->set_pattern(std::string(kPattern) + "%v");
      logger->flush_on(spdlog::level::trace);
    }
    return *logger;
  }
};

State& state() {
  static State instance;
  return instance;
}

}  // namespace

void setup(Options options) {
  state().options = std::move(options);
  state().logger.reset();
}

Level level_from_environment(Level fallback) {
  const auto name = env::lower(env::get("LOGLEVEL").value_or(""));
  if (name == "debug") return Level::debug;
  if (name == "info") return Level::info;
  if (name == "warning" || name == "warn") return Level::warning;
  if (name == "error" || name == "critical" || name == "fatal") return Level::error;
  return fallback;
}

bool enabled(Level level) noexcept { return level >= state().options.level && level != Level::off; }

void write(Level level, std::string_view area, std::string_view text) {
  if (!enabled(level)) return;
  const auto& context = state().options.context;
  if (context.empty()) {
    state().get().log(to_spdlog(level), "[{}] {}", area, text);
  } else {
    state().get().log(to_spdlog(level), "[{}] {} {}", area, text, context);
  }
}

}  // namespace dtrun::log
