// The first dtrun process: small, single threaded, there to clean up whatever happens to the agent.
#pragma once

#include <functional>

namespace dtrun::launcher {

// Forks. The child runs `agent` and this function returns its result there; the parent stays as guardian and returns
// the exit code of the whole job: the agent's own, or 128 + n when signal n killed it. Either way main returns it and
// does nothing more.
//
// Call it first thing in main, before threads and before memory is used: the guardian keeps what it had.
// The guardian forwards TERM, INT, HUP, QUIT, USR1 and USR2 (HUP not when it was inherited as ignored; the same signal
// from the same sender within 50 ms counts once, as timeout(1) signals both a process and its group), reaps whatever is
// re-parented to it (PID 1 in a container), and when the agent is gone kills everything that is left of the job. The
// agent runs in a process group of its own, so that Ctrl-C reaches it once, through the guardian. It starts with the
// caller's signal mask and ignores SIGPIPE, SIGXFSZ and SIGTTOU. When the guardian is killed, the agent is interrupted
// wherever it is (a real-time signal) and kills the whole job. Agent and guardian killed at the same moment: workers
// die by PDEATHSIG. Throws SystemError when fork fails.
int run_guarded(const std::function<int()>& agent);

}  // namespace dtrun::launcher
