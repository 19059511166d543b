// Trees of directories and files in which nobody wrote anything. All of it is usable in a signal handler.
#pragma once

namespace dtrun::launcher {

// Nothing below but directories, regular files of no bytes, and workers' progress files. False also when it cannot be
// looked at.
bool is_empty_tree(const char* path) noexcept;
// Removes such a tree, and nothing at all of any other. True when it is gone.
bool remove_empty_tree(const char* path) noexcept;

}  // namespace dtrun::launcher
