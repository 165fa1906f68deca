#pragma once
/// checkpoint.auto: what a start goes on from.

#include "megahost/checkpoint_format.hpp"
#include "megahost/host.hpp"
#include "megahost/recipe.hpp"

#include <string>

namespace mh {

/// The format of the weights in a folder where the run has no checkpoint of its own: another
/// program's newest whole checkpoint. Empty: the run has one there, or nothing is there, so that it
/// starts as with --resume=auto.
///
/// Throws:  mh::Error (exit code 5): several formats know the folder; megahost has saved a run there
///          in another format than the recipe's
[[nodiscard]] std::string automatic_weights(const Recipe& recipe, const Path& folder, Host& host);

} // namespace mh
