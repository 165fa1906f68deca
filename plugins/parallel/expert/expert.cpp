#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "dispatch.hpp"
#include "keys.hpp"

#include <megahost/plugin.hpp>
#include <megahost/strategy.hpp>

#include <string>

namespace {

/// Experts are sharded over the ranks of a pipeline stage, which the dense layers use for tensor,
/// context and data parallelism.
///
/// Source:  arXiv:2006.16668
class Expert : public mh::Strategy, public expert_parallel::Keys {
public:
  Expert(const Config& config, const Args&)
      : dispatch_(config.dispatch) {}

  void rules(mh::Rules& rules) const override {
    using namespace expert_parallel;
    rules.features.push_back({mh::axis::expert, mh::MeshAxis::ep});
    rules.features.push_back({mh::axis::expert_mlp, mh::MeshAxis::etp});
    rules.experts = dispatch_ == "all_gather" ? make_all_gather() : make_all_to_all();
  }

private:
  std::string dispatch_;
};

} // namespace

MH_PLUGIN("org.megahost.expert-parallel", "0.1.0", "expert parallelism", [](mh::Registry& r) {
  r.add<Expert>("expert", "experts are sharded over ranks: expert -> ep, expert_mlp -> etp");
});
