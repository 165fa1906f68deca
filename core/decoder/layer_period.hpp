#pragma once
/// Keys of Hugging Face's config.json that say which layers differ from the others.

#include "megahost/export.hpp"
#include "megahost/value.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace mh {

/// Takes out a key that says of how many layers the last differs from the others. It is not read where
/// `list` names the layers one by one; `usual` stands for an absent one.
///
/// Throws:  mh::Error for one below 1
[[nodiscard]] MH_API int64_t
taken_period(Table& config, const std::string& key, std::string_view list, int64_t usual);

} // namespace mh
