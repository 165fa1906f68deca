#pragma once
/// What a run says of itself before its first step.

#include "core/train/session.hpp"
#include "core/train/weights.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mh {

/// "org.megahost.llama 0.1.0" of every plugin that the recipe uses, each once.
[[nodiscard]] std::vector<std::string> used_plugins(const Recipe& recipe, Host& host);

[[nodiscard]] std::vector<std::string> start_block(
    const Session& session,
    const Weights& weights,
    const std::vector<std::string>& plugins,
    const std::filesystem::path& folder
);

/// The line that follows the first step: `peak` is what the device held at most until then.
[[nodiscard]] std::string peak_text(const Session& session, const Weights& weights, int64_t peak);

} // namespace mh
