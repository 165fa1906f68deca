#pragma once
/// The stacks of a process's threads, for the report of a run that hangs.

#include <sys/types.h>

#include <string>

namespace mh {

/// The stack of each thread of this process, those that are alike once. A signal (SIGURG, which does
/// nothing else) asks each thread for it; of one that does not answer within a second, the kernel
/// says where it waits.
///
/// Thread:  any, also while others are stuck in a lock or a loop
[[nodiscard]] std::string thread_stacks();

/// State, threads and places in the kernel of another process of this machine, as /proc shows them
/// to its user; empty where it shows none, or shows a process that runs another program than this
/// one.
///
/// Source:  proc(5)
[[nodiscard]] std::string process_state(pid_t process);

} // namespace mh
