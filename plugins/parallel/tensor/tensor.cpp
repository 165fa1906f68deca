#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "keys.hpp"

#include <megahost/plugin.hpp>
#include <megahost/strategy.hpp>

namespace {

/// Every rank of tp holds a slice of each matrix: some heads, some hidden units, some words.
class Tensor : public mh::Strategy, public tensor_parallel::Keys {
public:
  Tensor(const Config&, const Args&) {}

  void rules(mh::Rules& rules) const override {
    using namespace mh::axis;
    for (const auto logical : {heads, kv_heads, mlp, vocab}) {
      rules.features.push_back({logical, mh::MeshAxis::tp});
    }
  }
};

} // namespace

MH_PLUGIN("org.megahost.tensor-parallel", "0.1.0", "tensor parallelism", [](mh::Registry& r) {
  r.add<Tensor>("tensor", "matrices are split over ranks: heads, kv_heads, mlp, vocab -> tp");
});
