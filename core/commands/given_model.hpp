#pragma once
/// The trained model that a command asks for tokens: one rank, whatever trained it.

#include "core/cli/invocation.hpp"
#include "core/train/given_weights.hpp"
#include "core/train/session.hpp"
#include "megahost/host.hpp"

#include <memory>

namespace mh {

struct GivenModel {
  std::unique_ptr<Session> session;
  GivenWeights weights;
};

/// Loads the weights of the folder that the command names, in fp32 unless --set says otherwise, by
/// --recipe, --step, --weights-format and --allow-change; with `corpus` the recipe's data, too.
///
/// Throws:  mh::Error
[[nodiscard]] GivenModel given_model(const Invocation& invocation, Host& host, bool corpus = false);

} // namespace mh
