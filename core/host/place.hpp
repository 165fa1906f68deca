#pragma once
/// This process's place among the ranks of a run.

#include "core/host/invocation.hpp"
#include "core/mesh/launchers.hpp"
#include "megahost/host.hpp"

#include <optional>

namespace mh {

/// Says it where it is no run on one rank. In order: the options --rank, --world-size and --master;
/// our own launcher (--nproc); launcher plugins that are open, or lie in a plugin folder as
/// launcher-NAME.so; the environment, see mesh/launchers.hpp.
///
/// Throws:  mh::Error if options or environment are there in part, or two launchers claim it
[[nodiscard]] std::optional<Found> find_place(const Invocation& invocation, Host& host);

} // namespace mh
