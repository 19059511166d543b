// What ps, pkill and killall see of this process.
#pragma once

namespace dtrun::launcher {

// Overwrites the argument area that main got (cut where it is too short) and the name of the process: copy the
// arguments before. A pattern that names the program or one of its arguments no longer finds this process.
void set_process_title(int argc, char** argv, const char* title) noexcept;

}  // namespace dtrun::launcher
