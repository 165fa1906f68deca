#pragma once
/// The ranks of a group as those that decide together.

#include "megahost/error.hpp"
#include "megahost/mesh.hpp"
#include "megahost/ranks.hpp"

#include <cstdint>

namespace mh {

/// The members of a group, which must outlive the result.
[[nodiscard]] Ranks ranks_of(const Group& group);

/// The largest of the ranks' values.
[[nodiscard]] int64_t largest(const Group& group, int64_t value);

} // namespace mh
