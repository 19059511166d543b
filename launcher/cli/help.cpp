#include <fmt/format.h>

#include "launcher/cli/command_line.hpp"
#include "launcher/cli/options.hpp"

namespace dtrun::launcher {
namespace {

constexpr std::size_t kColumn = 38;

std::string_view title(Group group) {
  switch (group) {
    case Group::workers:
      return "Workers";
    case Group::rendezvous:
      return "Rendezvous";
    case Group::supervision:
      return "Supervision";
    case Group::logs:
      return "Logs";
    case Group::ignored:
      return "Accepted for torchrun's sake";
    case Group::general:
      break;
  }
  return "General";
}

std::string row(const Option& option) {
  auto left = fmt::format("  {}--{}", option.letter != 0 ? fmt::format("-{}, ", option.letter) : "", option.name);
  if (option.takes_value) left += fmt::format(" {}", option.metavar);
  std::string right(option.help);
  if (!option.initial.empty()) right += fmt::format(" (default {})", option.initial);
  if (left.size() >= kColumn) return fmt::format("{}\n{:{}}{}\n", left, "", kColumn, right);
  return fmt::format("{:{}}{}\n", left, kColumn, right);
}

}  // namespace

std::string help_text() {
  std::string text =
      "usage: dtrun [options] PROGRAM [arguments]\n"
      "       dtrun doctor     what ended jobs left on this machine\n\n"
      "Starts one worker per rank, restarts the job when one fails, and leaves no process behind.\n"
      "PROGRAM  worker = the bundled trainer; x.py = a Python script; else an executable, or a file for Python.\n"
      "         Everything after PROGRAM belongs to it; $local_rank in an argument becomes the local rank, $$ a $.\n"
      "Every option with a default can also be set as PET_<NAME>, for example PET_NPROC_PER_NODE=4.\n";
  for (const auto group :
       {Group::workers, Group::rendezvous, Group::supervision, Group::logs, Group::ignored, Group::general}) {
    text += fmt::format("\n{}\n", title(group));
    for (const auto& option : option_table()) {
      if (option.group == group) text += row(option);
    }
  }
  text +=
      "\nExamples\n"
      "  dtrun --nproc-per-node=4 worker\n"
      "  dtrun --nproc-per-node=gpu --max-restarts=3 train.py --lr 3e-4\n"
      "  dtrun --nproc-per-node=2 --no-python ./my_program\n";
  return text;
}

std::string version_text() { return fmt::format("dtrun {}\n", DTRUN_VERSION); }

}  // namespace dtrun::launcher
