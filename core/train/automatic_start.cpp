#include "core/train/automatic_start.hpp"

#include "core/checkpoint/detect_format.hpp"
#include "core/checkpoint/run_folder.hpp"
#include "core/mesh/meeting.hpp"
#include "core/model/plugin_call.hpp"
#include "core/train/checkpointing.hpp"

#include <optional>

namespace mh {

namespace {

/// The format of the weights of another program in a folder; empty if there are none.
std::string automatic_format(const Recipe& recipe, const Path& folder, Host& host) {
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

constexpr const char* kOwn = "its own";

} // namespace

Recipe::Load load_of(const Recipe& recipe, Host& host, const TrainOptions& options) {
  const bool automatic = recipe.checkpoint.automatic && recipe.load.from.empty();
  if (options.resume == Resume::no || (recipe.load.from.empty() && !automatic)) {
    return recipe.load;
  }
  const auto meeting = options.processes != nullptr ? options.processes->meeting("load") : nullptr;
  const bool named = options.resume == Resume::yes && options.folder_named;
  const Path folder =
      checkpoint_folder(recipe, run_folder(recipe.run_folder(), /*resume=*/true, named));
  const std::string found = on_first(meeting ? meeting->ranks() : Ranks(), [&] {
    const auto own = checkpoint_format(recipe, host);
    const auto saved = steps_of(*own, folder);
    return saved && !saved->empty() ? kOwn
           : automatic              ? automatic_format(recipe, folder, host)
                                    : std::string();
  });
  if (found == kOwn) {
    return {};
  }
  Recipe::Load load = recipe.load;
  if (!found.empty()) {
    load.from = folder.string();
    load.format = found;
  }
  return load;
}

} // namespace mh
