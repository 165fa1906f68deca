// Tensor parallelism of feed-forward layers alone: their hidden units are split over the ranks of
// tp, attention is not. The core derives shapes, collectives and gradient sums from the rule.

#define MH_PLUGIN_LICENSE "MIT"
#include <megahost/conditions.hpp>
#include <megahost/plugin.hpp>
#include <megahost/strategy.hpp>

namespace {

class @Name@ : public mh::Strategy {
public:
  struct Config {
    int64_t degree = 1;
    bool vocab = false;
  };

  // Keys of a recipe's section `parallel`, checked and documented. The strategy is in force where
  // its degree is above 1, or where `parallel.strategies` names it.
  static void fields(mh::Fields<Config>& f) {
    f.add("@own_key@", &Config::degree, "ranks over which feed-forward layers are split")
        .at_least(1)
        .degree(mh::MeshAxis::tp);
    f.add("@own_key@_vocab", &Config::vocab, "split the vocabulary too").along(mh::MeshAxis::tp);
  }

  // The recipes that it refuses.
  static void conditions(mh::Conditions& c) {
    c.divides("model.ffn_hidden", "parallel.@own_key@", "each rank has as many hidden units");
    if (c.integer("parallel.@own_key@") > 1 && c.degree(mh::MeshAxis::ep) > 1) {
      c.report(
          {"parallel.@own_key@", c.degree_key(mh::MeshAxis::ep)},
          "parallel.@own_key@ does not know experts, but " + c.degree_key(mh::MeshAxis::ep) + " is " +
              c.text(c.degree(mh::MeshAxis::ep)),
          "set one of them to 1"
      );
    }
  }

  // The degrees that `megahost plan --search` tries: those that fit into a node.
  static std::vector<mh::Table> searched(const mh::SearchFacts& facts) {
    return mh::degrees_up_to("@own_key@", facts.ranks_per_node);
  }

  @Name@(const Config& config, const Args&)
      : config_(config) {}

  // The mesh axis of each logical axis. Models name their axes (megahost/axis.hpp) and never a
  // rank; a mesh axis of one rank splits nothing.
  void rules(mh::Rules& rules) const override {
    rules.features.push_back({mh::axis::mlp, mh::MeshAxis::tp});
    if (config_.vocab) {
      rules.features.push_back({mh::axis::vocab, mh::MeshAxis::tp});
    }
  }

private:
  Config config_;
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with a parallel strategy", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "feed-forward layers split over tp: mlp -> tp");
})
