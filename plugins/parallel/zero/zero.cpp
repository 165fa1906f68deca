#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "keys.hpp"

#include <megahost/plugin.hpp>
#include <megahost/strategy.hpp>

namespace {

/// ZeRO shards over the data ranks what is the same on all of them: the optimizer's state and
/// master weights (ZeRO-1), gradients (ZeRO-2), and weights (ZeRO-3, FSDP), which are gathered
/// before a block runs. No tensor that a block computes with lies elsewhere, so there are no rules;
/// the trainer shards whole units of the optimizer.
///
/// Source:  arXiv:1910.02054
class Zero : public mh::Strategy, public zero_optimizer::Keys {
public:
  Zero(const Config&, const Args&) {}

  void rules(mh::Rules&) const override {}
};

} // namespace

MH_PLUGIN("org.megahost.zero", "0.1.0", "distributed optimizer", [](mh::Registry& r) {
  r.add<Zero>("zero", "data ranks share optimizer state (1), gradients (2) and weights (3)");
});
