#pragma once
/// The description of a run before its first step.

#include "core/session/session.hpp"
#include "core/step/weights.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// "org.megahost.llama 0.1.0" of every plugin that the recipe uses, each once.
[[nodiscard]] std::vector<std::string> used_plugins(const Recipe& recipe, Host& host);

/// Sentences about options that do nothing here, or lose something.
[[nodiscard]] std::vector<std::string> option_notes(const Session& session);

/// FLOP/s of a device, and who says so: "data sheet", "as its plugin says", "measured". 0: not known.
struct DevicePeak {
  double flops = 0;
  std::string source{};
};

/// The device's own, else of a CPU what `measure` finds (null: nothing), of the session's type.
[[nodiscard]] DevicePeak
device_peak(const Session& session, const std::function<double(at::ScalarType)>& measure);

/// Bytes of a rank's host memory that saving takes in addition to the steps'.
struct SaveBytes {
  int64_t copy = 0;   ///< copy of all that is saved, from the first save on (checkpoint.async)
  int64_t staged = 0; ///< copy of one tensor at a time, where tensors are not in host memory
};

[[nodiscard]] std::vector<std::string> start_block(
    const Session& session,
    Host& host,
    const Weights& weights,
    const DevicePeak& peak,
    const std::vector<std::string>& plugins,
    const std::filesystem::path& folder,
    const SaveBytes& saves = {}
);

/// Bytes that a run holds from its start to its end: weights, gradients, masters, optimizer state.
[[nodiscard]] int64_t state_bytes(const Session& session, const Weights& weights);

/// The line that follows the first step: what its tensors took at most, next to the plan (0: none).
[[nodiscard]] std::string peak_text(std::optional<int64_t> stage, int64_t taken, int64_t planned);

} // namespace mh
