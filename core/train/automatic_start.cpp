#include "core/train/automatic_start.hpp"

#include "core/checkpoint/detect_format.hpp"
#include "core/model/plugin_call.hpp"
#include "core/train/checkpointing.hpp"

#include <optional>

namespace mh {

std::string automatic_weights(const Recipe& recipe, const Path& folder, Host& host) {
  const auto own = checkpoint_format(recipe, host);
  const auto saved = steps_of(*own, folder);
  if (saved && !saved->empty()) {
    return "";
  }
  const auto found = find_format(folder, host);
  if (!found) {
    return "";
  }
  const CheckpointFormat& format = *found->format;
  const auto steps = steps_of(format, folder);
  if (steps && steps->empty()) {
    return "";
  }
  const auto newest = steps ? std::optional(steps->front()) : std::nullopt;
  const auto reader = in_plugin(format, "open", [&] { return format.open(folder, newest); });
  if (reader->names() == TensorNames::own && !reader->state().empty()) {
    throw Error(
        "checkpoint.auto: " + folder.string() + " holds a run's checkpoints as a " +
            format.about() + ", and the recipe saves in the format " + recipe.checkpoint.use,
        "set checkpoint.use = \"" + found->name +
            "\", or bring them there by megahost checkpoint import",
        exit_code::data
    );
  }
  return found->name;
}

} // namespace mh
