#pragma once
/// Ranks as threads of one process: a transport of shared slots and a barrier, for tests and for
/// checks of small models under many layouts.
///
/// ```cpp
/// mh::run_ranks({.dp = 2, .tp = 2}, [](const mh::Mesh& mesh) { });  // 4 threads
/// ```

#include "megahost/mesh.hpp"

#include <cstdint>
#include <functional>
#include <string>

namespace mh {

/// Puts something between a group and its transport: faults that a test wants to see found.
using WrapBackend = std::function<c10::intrusive_ptr<c10d::Backend>(
    c10::intrusive_ptr<c10d::Backend> backend, const std::string& group, int64_t rank
)>;

struct ThreadOptions {
  std::string order = "tp-cp-ep-dp-pp";
  WrapBackend wrap = nullptr;
};

/// Runs `body` on one thread per rank of a mesh of this shape and waits for all. The ranks share
/// the machine's cores.
///
/// Throws:  what the first failing rank threw; the others are released from their collectives
MH_API void run_ranks(
    const MeshShape& shape,
    const std::function<void(const Mesh&)>& body,
    const ThreadOptions& options = {}
);

} // namespace mh
