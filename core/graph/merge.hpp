#pragma once
/// The graphs of all ranks as one: what differs in value becomes a table, what differs otherwise is
/// refused.

#include "core/graph/graph.hpp"

#include <cstdint>
#include <vector>

namespace mh::program {

/// One graph for ranks that do the same to tensors of the same shapes. Numbers and constants that
/// differ are kept for each of them; the value `rank`, an input of all graphs, says which a rank
/// takes.
///
/// Throws:  mh::Error that names the first operator that is not the same
[[nodiscard]] Graph merge_ranks(std::vector<Graph> ranks, int64_t rank);

} // namespace mh::program
