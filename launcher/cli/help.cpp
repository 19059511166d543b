#include <fmt/format.h>

#include "launcher/cli/help.hpp"
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

constexpr Group kGroups[] = {Group::workers, Group::rendezvous, Group::supervision,
                             Group::logs,    Group::ignored,    Group::general};

constexpr std::string_view kSummary =
    "Starts one worker per rank, restarts the job when one fails, and leaves no process behind.";
constexpr std::string_view kProgram =
    "PROGRAM  worker = the bundled trainer; x.py = a Python script; else an executable, or a file for Python.\n"
    "         Everything after PROGRAM belongs to it; $local_rank in an argument becomes the local rank, $$ a $.\n";
constexpr std::string_view kVariables =
    "Each option can also be set as PET_<NAME>, such as PET_NPROC_PER_NODE=4 (but --numa-binding, --logs-specs and "
    "those "
    "under General); the command line wins.";
constexpr std::string_view kExitStatus =
    "0 when every worker ended well; else the code of the worker that failed first, 128 + n for signal n; 127 program "
    "not "
    "found, 126 not executable, 2 bad command line, 75 a failure of dtrun or the system.";
constexpr std::string_view kExamples[] = {"dtrun --nproc-per-node=4 worker",
                                          "dtrun --nproc-per-node=gpu --max-restarts=3 train.py --lr 3e-4",
                                          "dtrun --nproc-per-node=2 --no-python ./my_program"};

std::string meaning(const Option& option) {
  return option.initial.empty() ? std::string(option.help)
                                : fmt::format("{} (default {})", option.help, option.initial);
}

std::string row(const Option& option) {
  auto left = fmt::format("  {}--{}", option.letter != 0 ? fmt::format("-{}, ", option.letter) : "", option.name);
  if (option.takes_value) left += fmt::format(" {}", option.metavar);
  if (left.size() >= kColumn) return fmt::format("{}\n{:{}}{}\n", left, "", kColumn, meaning(option));
  return fmt::format("{:{}}{}\n", left, kColumn, meaning(option));
}

// Text that roff prints as it is.
std::string roff(std::string_view text) {
  std::string result;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\')
      result += "\\e";
    else if (c == '-')
      result += "\\-";
    else
      result += c;
    line_start = c == '\n';
  }
  return result;
}

std::string man_entry(const Option& option) {
  auto text = fmt::format(".TP\n{}\\fB\\-\\-{}\\fR",
                          option.letter != 0 ? fmt::format("\\fB\\-{}\\fR, ", option.letter) : "", roff(option.name));
  if (option.takes_value) text += fmt::format(" \\fI{}\\fR", roff(option.metavar));
  return text + "\n" + roff(meaning(option)) + "\n";
}

}  // namespace

std::string help_text() {
  auto text = fmt::format(
      "usage: dtrun [options] PROGRAM [arguments]\n"
      "       dtrun doctor     what ended jobs left on this machine\n\n"
      "{}\n{}{}\n",
      kSummary, kProgram, kVariables);
  for (const auto group : kGroups) {
    text += fmt::format("\n{}\n", title(group));
    for (const auto& option : option_table()) {
      if (option.group == group) text += row(option);
    }
  }
  text += "\nExamples\n";
  for (const auto& example : kExamples) text += fmt::format("  {}\n", example);
  return text;
}

std::string man_text() {
  auto text = fmt::format(
      ".TH DTRUN 1 \"\" \"dtrun {}\"\n.SH NAME\ndtrun \\- launcher for distributed training\n.SH SYNOPSIS\n"
      ".B dtrun\n[options] PROGRAM [arguments]\n.br\n.B dtrun doctor\n.SH DESCRIPTION\n{}\n.nf\n{}.fi\n.SH OPTIONS\n",
      DTRUN_VERSION, roff(kSummary), roff(kProgram));
  for (const auto group : kGroups) {
    text += fmt::format(".SS {}\n", roff(title(group)));
    for (const auto& option : option_table()) {
      if (option.group == group) text += man_entry(option);
    }
  }
  text +=
      fmt::format(".SH ENVIRONMENT\n{}\n.SH EXIT STATUS\n{}\n.SH EXAMPLES\n.nf\n", roff(kVariables), roff(kExitStatus));
  for (const auto& example : kExamples) text += roff(example) + "\n";
  return text + ".fi\n";
}

std::string version_text() { return fmt::format("dtrun {}\n", DTRUN_VERSION); }

}  // namespace dtrun::launcher
