#pragma once
/// Layouts as the command line writes them: 'tensor=2; pipeline=2,data=2', or all that there are.

#include "megahost/registry.hpp"
#include "megahost/schema.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mh {

struct Layout {
  std::string text;              ///< "tensor=2,sequence=true"
  std::vector<std::string> sets; ///< "parallel.tensor=2", ... as --set takes them
};

/// `;` between layouts, `,` within one; a key is one of `parallel`, or whole ("recompute.use").
///
/// Throws:  mh::Error for an item that is no KEY=VALUE
[[nodiscard]] std::vector<Layout> parse_layouts(const std::string& text);

/// Every combination of at most `ranks` ranks, from two on, that the strategies make: their
/// degrees, levels and methods as the section `parallel` declares them (shared_schema). Some of
/// them contradict a model.
[[nodiscard]] std::vector<Layout>
all_layouts(const Schema& parallel, const std::vector<std::string>& schedules, int64_t ranks);

/// "tensor 4, sequence, pipeline 2, data 4, zero 1": what the section `parallel` of a recipe splits,
/// and how; empty if nothing. `fields`: those of `parallel` (shared_schema).
[[nodiscard]] std::string layout_words(const Value& parallel, const Schema& fields);

/// Whether `parallel.strategies` names a strategy, "mine" or "org.example.mine/mine".
[[nodiscard]] bool is_named(const Value& parallel, const Registry::Entry& strategy);

/// ", sequence, zero 3": what these strategies are told besides degrees, of axes that `splits` says
/// have more than one rank; empty if nothing.
[[nodiscard]] std::string strategy_settings(
    const Value& parallel,
    const std::vector<const Registry::Entry*>& strategies,
    const std::function<bool(MeshAxis axis)>& splits
);

} // namespace mh
