#pragma once
/// A checkpoint that several ranks of one machine load: they read and hash each of its bytes once
/// between them, and send one another what they need.

#include "megahost/checkpoint_format.hpp"
#include "megahost/ranks.hpp"

#include <span>
#include <string>

namespace mh {

/// A word that the processes of one machine share, and those of others do not.
[[nodiscard]] std::string machine_word();

/// Fills every rank's slices, which fit. Each file is read by the rank of a machine that needs most
/// of it. Ranks that have no group read for themselves.
///
/// Throws:  what `CheckpointReader::read` throws, on the rank that read, or a failure to fill a slice,
///          on its rank, once all have what others sent; then slices of others have new values, too
/// Ranks:   all; `machine` is this one's word
void read_together(
    CheckpointReader& saved,
    std::span<const Slice> slices,
    const Ranks& ranks,
    const std::string& machine = machine_word()
);

} // namespace mh
