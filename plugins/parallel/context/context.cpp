#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "keys.hpp"
#include "methods.hpp"

#include <megahost/plugin.hpp>
#include <megahost/strategy.hpp>

#include <string>

namespace {

/// Every rank of cp sees some tokens of each sample; attention reaches the others by one of three
/// methods.
class Context : public mh::Strategy, public context_parallel::Keys {
public:
  Context(const Config& config, const Args&)
      : method_(config.method) {}

  void rules(mh::Rules& rules) const override {
    using namespace context_parallel;
    rules.tokens.push_back({mh::axis::seq, mh::MeshAxis::cp, mh::Sharding::zigzag});
    rules.attention = method_ == "all_to_all"   ? make_all_to_all()
                      : method_ == "all_gather" ? make_all_gather()
                                                : make_ring();
  }

private:
  std::string method_;
};

} // namespace

MH_PLUGIN("org.megahost.context-parallel", "0.1.0", "context parallelism", [](mh::Registry& r) {
  r.add<Context>("context", "each rank sees some tokens of every sample: seq -> cp");
});
