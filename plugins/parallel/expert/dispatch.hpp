#pragma once
/// How tokens reach experts of other ranks, and how what they made comes back.

#include <megahost/nn/experts.hpp>

#include <memory>

namespace expert_parallel {

/// Every rank that shares experts sees all tokens, and adds what its own experts make of them:
/// all-gather, reduce-scatter. No sizes are exchanged.
[[nodiscard]] std::unique_ptr<const mh::ExpertMethod> make_all_gather();

/// A token goes to the ranks of the experts that it chose. Sizes are exchanged first: one value is
/// read on the host in each layer.
[[nodiscard]] std::unique_ptr<const mh::ExpertMethod> make_all_to_all();

} // namespace expert_parallel
