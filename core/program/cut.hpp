#pragma once
/// Modules that were recorded one after the other and read what those before them have computed:
/// such values become results of one and arguments of the other.

#include "core/program/step_recorder.hpp"

#include <span>

namespace mh::program {

/// Gives the modules of a chain the inputs and outputs that they need; modules[i] is what was
/// recorded from its first node to that of the next one. A module takes those of the chain's
/// declared inputs that it reads, and no others. Earlier modules save what it reads of theirs
/// ("forward.saved.3"), but for constants and views of what it has anyway, which it makes again.
void cut(const Graph& recorded, std::span<RecordedModule> ret_modules);

} // namespace mh::program
