#pragma once
/// The transport between processes of one machine: memory that they share, without sockets or
/// threads.

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace c10d {
class Backend;
class Store;
} // namespace c10d

namespace mh {

struct SharedMemoryTerms {
  std::vector<int64_t> ranks; ///< the group's members, as ranks of the run
  int member = 0;             ///< this one
  std::string machine;        ///< members of whom others say the same may share memory
  std::chrono::milliseconds timeout{};
};

/// Connects the members of one group. A member copies what it shows or sends into memory of its
/// own, which grows to the most that others have not yet read; they read it there. It is noticed
/// within a tenth of a second when a member's process ends.
///
/// Returns: nothing, to all members, where they are not on one machine or may not open each other's
///          memory (containers, users)
/// Throws:  c10::Error if the others do not come within the timeout
[[nodiscard]] c10::intrusive_ptr<c10d::Backend>
make_shared_memory(const c10::intrusive_ptr<c10d::Store>& store, const SharedMemoryTerms& terms);

} // namespace mh
