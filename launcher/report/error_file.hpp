// The JSON file in which a worker decorated with torch's @record leaves its exception (TORCHELASTIC_ERROR_FILE).
#pragma once

#include <optional>
#include <string>

#include "rendezvous/contract/error_document.hpp"

namespace dtrun::launcher {

struct ErrorFile {
  bool present = false;
  std::string message;    // "ValueError: ..."
  std::string traceback;  // py_callstack; empty in the short form of the file
  double timestamp = 0;   // epoch seconds, 0 when the file has none
  // The rank it waited for in vain: extraInfo.blames_rank, or "rank N is missing" in the message.
  std::optional<int> blames_rank;
  bool retry = true;  // false: extraInfo.retry says that another attempt cannot help
  std::string note;   // why the file could not be used; for the report
};

// Never throws: a missing file is `present == false`, a bad one is a note. At most 1 MiB is read.
ErrorFile read_error_file(const std::string& path);

// What torchrun does with the launcher's own TORCHELASTIC_ERROR_FILE: the root cause's file copied with
// message.errorCode added. Returns an empty string, or why it could not be done.
std::string copy_error_file(const std::string& from, const std::string& to, int exit_code);

// The same file for a failure of the launcher itself.
std::string write_error_file(const std::string& path, const ErrorDocument& document);

}  // namespace dtrun::launcher
