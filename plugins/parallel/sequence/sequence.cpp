#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "keys.hpp"

#include <megahost/plugin.hpp>
#include <megahost/strategy.hpp>

namespace {

/// Between the regions that tensor parallelism splits, each rank of tp holds some of the tokens, so
/// norms, dropout and the residual stream are not computed and kept by all of them.
class Sequence : public mh::Strategy, public sequence_parallel::Keys {
public:
  Sequence(const Config&, const Args&) {}

  void rules(mh::Rules& rules) const override {
    rules.between.push_back({mh::axis::seq, mh::MeshAxis::tp});
  }
};

} // namespace

MH_PLUGIN("org.megahost.sequence-parallel", "0.1.0", "sequence parallelism", [](mh::Registry& r) {
  r.add<Sequence>("sequence", "tokens are split between the tensor-parallel regions: seq -> tp");
});
