#pragma once
/// The trained model that a command asks: one rank, whatever trained it, or a copy on each rank of
/// --nproc.

#include "core/cli/invocation.hpp"
#include "core/mesh/processes.hpp"
#include "core/session/session.hpp"
#include "core/train/given_weights.hpp"
#include "megahost/host.hpp"

#include <memory>
#include <optional>

namespace mh {

struct GivenModel {
  std::unique_ptr<Processes> processes; ///< null where this is the only rank
  std::unique_ptr<Session> session;
  GivenWeights weights;
};

/// Loads the weights of the folder that the command names, in fp32 unless --set says otherwise, by
/// --recipe, --step, --weights-format and --allow-change; with `corpus` the recipe's data, too.
///
/// Throws:  mh::Error
[[nodiscard]] GivenModel given_model(const Invocation& invocation, Host& host, bool corpus = false);

/// Where a command is told --nproc, and this is no rank of it yet, runs it as so many.
///
/// Returns: the exit status for the whole
[[nodiscard]] std::optional<int> run_as_given_ranks(const Invocation& invocation);

} // namespace mh
