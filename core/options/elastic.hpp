#pragma once
/// Layouts for ranks that a recipe's own layout does not fit: parallel.elastic.

#include "core/cli/invocation.hpp"
#include "core/options/read.hpp"
#include "core/recipe/layouts.hpp"
#include "megahost/host.hpp"

#include <optional>
#include <string_view>
#include <vector>

namespace mh {

/// The entry of parallel.elastic that stands for the fastest layout of a search.
inline constexpr std::string_view kSearchedLayout = "plan";

/// The layouts of `parallel.elastic`, of a command that has ranks; one without sets is
/// kSearchedLayout.
///
/// Throws:  mh::Error for an entry that is no layout, and where the samples of a step would change
[[nodiscard]] std::vector<Layout>
elastic_layouts(const Invocation& invocation, const Value& recipe);

/// The fastest layout that fits so many ranks, by the search of `megahost plan --search`; nothing if
/// none does. Each rank finds it by itself, and all find the same: the machine is the one that the
/// device is planned for, or for devices of the host's memory one of nominal rates.
///
/// base:    the recipe on one rank (one_rank_sets)
/// facts:   those of the run
[[nodiscard]] std::optional<Layout>
searched_layout(const Read& base, Host& host, const Facts& facts);

} // namespace mh
