#pragma once
/// Ranks as threads of one process: a transport of shared slots and a barrier, for tests and for
/// checks of small models under many layouts.
///
///   mh::run_ranks({.tp = 2, .dp = 2}, [](const mh::Mesh& mesh) { ... });   // 4 threads

#include "megahost/mesh.hpp"

#include <functional>

namespace mh {

/// Runs `body` on one thread per rank of a mesh of this shape and waits for all.
///
/// Throws:  what the first failing rank threw; the others are released from their collectives
MH_API void run_ranks(const MeshShape& shape, const std::function<void(const Mesh&)>& body);

} // namespace mh
