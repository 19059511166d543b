// What dtrun says about itself, all from the table of options.
#pragma once

#include <string>
#include <string_view>

namespace dtrun::launcher {

std::string help_text();
std::string version_text();
// A man page in roff: dtrun --man | man -l -
std::string man_text();
// Completion of dtrun's command line for bash, zsh or tcsh: source <(dtrun --print-completion bash)
std::string completion_text(std::string_view shell);

}  // namespace dtrun::launcher
