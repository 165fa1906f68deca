#pragma once
/// The checkpoint of another run or program that a start loads: `load`, checkpoint.auto.

#include "core/train/train.hpp"
#include "megahost/host.hpp"
#include "megahost/recipe.hpp"

namespace mh {

/// The recipe's `load`; nothing where the run goes on from a checkpoint of its own. With
/// checkpoint.auto, and nothing else named, another program's newest whole checkpoint in the folder
/// of the run's.
///
/// Throws:  mh::Error (exit code 5): several formats know the folder; megahost has saved a run there
///          in another format than the recipe's
/// Ranks:   all; rank 0 looks
[[nodiscard]] Recipe::Load load_of(const Recipe& recipe, Host& host, const TrainOptions& options);

} // namespace mh
