#include "launcher/doctor/doctor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <vector>

#include "launcher/agent/run_directory.hpp"
#include "launcher/agent/stale_directories.hpp"
#include "launcher/logs/console_text.hpp"
#include "launcher/process/empty_tree.hpp"
#include "launcher/process/leftovers.hpp"
#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/contract/exit_codes.hpp"

namespace dtrun::launcher {
namespace {

constexpr auto kGrace = std::chrono::seconds(3);
constexpr std::size_t kCommandWidth = 60;
constexpr std::size_t kDirectoriesShown = 10;

constexpr auto kHelp =
    "usage: dtrun doctor [--end [PID...]] [--prune]\n\n"
    "Lists what ended jobs left on this machine: processes that outlived their dtrun (possible only when both of its\n"
    "processes were killed at the same moment), and temporary directories. Exit code 0: nothing is left.\n\n"
    "  --end [PID...]  end those processes, or only these of them: SIGTERM, and SIGKILL after 3 s\n"
    "  --prune         remove the directories that hold nothing but empty files\n";

struct Orders {
  bool help = false;
  bool end = false;
  bool prune = false;
  std::vector<pid_t> pids;  // none: all
};

Orders parse(std::span<const std::string> arguments) {
  Orders orders;
  for (const auto& word : arguments.subspan(1)) {
    const auto number = env::parse_int(word);
    if (word == "--help" || word == "-h") {
      orders.help = true;
    } else if (word == "--end") {
      orders.end = true;
    } else if (word == "--prune") {
      orders.prune = true;
    } else if (orders.end && number && *number > 0) {
      orders.pids.push_back(static_cast<pid_t>(*number));
    } else {
      throw UsageError("doctor", fmt::format("\"{}\": expected --end [PID...], --prune or --help", word));
    }
  }
  return orders;
}

std::string duration_text(std::chrono::seconds time) {
  const auto seconds = time.count();
  return seconds < 3600 ? fmt::format("{}m{:02}s", seconds / 60, seconds % 60)
                        : fmt::format("{}h{:02}m", seconds / 3600, seconds / 60 % 60);
}

void print_table(const std::vector<Leftover>& leftovers) {
  fmt::print("  {:>8}  {:>5}  {:>8}  {:<20}  {}\n", "PID", "RANK", "AGE", "JOB", "COMMAND");
  for (const auto& at : leftovers) {
    fmt::print("  {:>8}  {:>5}  {:>8}  {:<20}  {}\n", at.pid, escaped(at.rank), duration_text(at.age),
               escaped(at.run_id).substr(0, 20), escaped(at.command.substr(0, kCommandWidth)));
  }
}

// Only those that were found: any other process is none of ours to end.
std::vector<Leftover> chosen(const std::vector<Leftover>& found, const std::vector<pid_t>& pids) {
  if (pids.empty()) return found;
  std::vector<Leftover> result;
  for (const pid_t pid : pids) {
    const auto at = std::find_if(found.begin(), found.end(), [&](const Leftover& one) { return one.pid == pid; });
    if (at == found.end())
      throw UsageError("doctor", fmt::format("--end {}: expected one of the processes that `dtrun doctor` lists", pid));
    result.push_back(*at);
  }
  return result;
}

// True when nothing is left.
bool treat_processes(const Orders& orders) {
  const auto [found, elsewhere] = find_leftovers();
  if (elsewhere > 0) fmt::print("{} of jobs in containers of their own: look there\n", counted(elsewhere, "process"));
  const auto victims = orders.end ? chosen(found, orders.pids) : std::vector<Leftover>();
  if (found.empty()) return true;
  if (!orders.end) {
    fmt::print("{} outlived {} job:\n", counted(found.size(), "process"), found.size() == 1 ? "its" : "their");
    print_table(found);
    fmt::print("  dtrun doctor --end ends them, dtrun doctor --end PID... some of them\n");
    return false;
  }
  const auto stubborn = end_leftovers(victims, kGrace);
  fmt::print("ended {} of {}\n", victims.size() - stubborn.size(), counted(found.size(), "process"));
  if (!stubborn.empty()) {
    fmt::print("these did not end, not even by SIGKILL:\n");
    print_table(stubborn);
  }
  return stubborn.empty() && victims.size() == found.size();
}

bool treat_directories(const Orders& orders) {
  const auto base = temporary_base_directory();
  std::size_t removable = 0, removed = 0;
  std::vector<std::string> kept;
  for (const auto& directory : find_stale_directories(base)) {
    if (!directory.empty) {
      kept.push_back(directory.path);
      continue;
    }
    ++removable;
    if (orders.prune && remove_empty_tree(directory.path.c_str())) ++removed;
  }
  if (orders.prune) {
    fmt::print("{} of {} directories of ended runs without content were removed from {}\n", removed, removable, base);
  } else if (removable > 0) {
    fmt::print("{} directories of ended runs in {} have no content; dtrun doctor --prune removes them\n", removable,
               base);
  }
  // Results, not leftovers: they do not count.
  if (!kept.empty()) fmt::print("{} directories of ended runs hold logs or error files and are kept:\n", kept.size());
  for (std::size_t i = 0; i < std::min(kept.size(), kDirectoriesShown); ++i) fmt::print("  {}\n", kept[i]);
  if (kept.size() > kDirectoriesShown) fmt::print("  ... and {} more\n", kept.size() - kDirectoriesShown);
  return removed == removable;
}

}  // namespace

int doctor(std::span<const std::string> arguments) {
  try {
    const auto orders = parse(arguments);
    if (orders.help) {
      fmt::print("{}", kHelp);
      return kExitSuccess;
    }
    const bool no_processes = treat_processes(orders);
    const bool no_directories = treat_directories(orders);
    if (no_processes && no_directories && !orders.end && !orders.prune) fmt::print("nothing is left of ended jobs\n");
    return no_processes && no_directories ? kExitSuccess : kExitFailure;
  } catch (const UsageError& error) {
    fmt::print(stderr, "dtrun: error: {}\n", error.what());
    return kExitUsage;
  }
}

}  // namespace dtrun::launcher
