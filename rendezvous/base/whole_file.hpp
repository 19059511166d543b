// Result files (reports, saved values) that a user names: written whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace dtrun {

// Both return an empty string, or one line that names the path and says why not. Symbolic links are followed. Only
// regular files are ever removed or replaced; a device or a named pipe is written into, with 60 s of patience without
// progress (and 1 s for a pipe that nobody has opened). Anything else that blocks is the disk.

// A regular file gets the text in one step (temporary file beside it + rename; in place where only the file itself may
// be written).
std::string write_file_whole(const std::string& path, std::string_view bytes);

// For the start of a program: finds out whether the write could succeed, and removes the regular file of an earlier
// run, so that it cannot speak for this one.
std::string prepare_file_whole(const std::string& path);

}  // namespace dtrun
