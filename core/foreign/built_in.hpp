#pragma once
/// The formats of this tree. They come through the same door as those of plugins.

#include "megahost/export.hpp"
#include "megahost/registry.hpp"

namespace mh {

/// Offers `native` and `huggingface`, for a host to merge.
[[nodiscard]] MH_API Registry built_in_formats();

} // namespace mh
