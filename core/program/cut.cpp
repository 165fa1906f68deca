#include "core/program/cut.hpp"

#include "megahost/error.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace mh::program {

namespace {

/// Operators that move no numbers, or only copy them.
constexpr std::string_view kViews[] = {
    "aten::_reshape_alias",
    "aten::_unsafe_view",
    "aten::alias",
    "aten::as_strided",
    "aten::clone",
    "aten::copy",
    "aten::detach",
    "aten::expand",
    "aten::permute",
    "aten::squeeze",
    "aten::squeeze.dim",
    "aten::squeeze.dims",
    "aten::t",
    "aten::transpose.int",
    "aten::unsqueeze",
    "aten::view"};

class ChainCutter {
public:
  ChainCutter(const Graph& graph, std::span<RecordedModule> ret_modules)
      : graph_(graph)
      , modules_(ret_modules)
      , made_by_(graph.values.size(), kNone)
      , constant_(graph.values.size(), false) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const bool constant = inputs_satisfy(graph.nodes[n], [this](int64_t value) {
        return constant_[static_cast<size_t>(value)];
      });
      for (const int64_t value : graph.nodes[n].outputs) {
        if (value >= 0) {
          made_by_[static_cast<size_t>(value)] = n;
          constant_[static_cast<size_t>(value)] = constant;
        }
      }
    }
    for (size_t m = 0; m < modules_.size(); ++m) {
      for (size_t i = 0; i < modules_[m].inputs.size(); ++i) {
        declared_.emplace(modules_[m].inputs[i], Declared{m, modules_[m].module.inputs[i]});
      }
    }
  }

  void run() {
    for (size_t m = modules_.size(); m-- > 0;) { // later ones say what is to be saved
      give_inputs(m);
    }
  }

private:
  static constexpr size_t kNone = SIZE_MAX;

  /// An input, and the first module that takes it.
  struct Declared {
    size_t module;
    Port port;
  };

  template <class Satisfied>
  static bool inputs_satisfy(const Node& node, const Satisfied& satisfied) {
    return std::ranges::all_of(node.inputs, [&](const auto& values) {
      return std::ranges::all_of(values, [&](int64_t value) {
        return value < 0 || satisfied(value);
      });
    });
  }

  /// Whether module `m` computes a value itself: no other has, or it costs little.
  bool computes(size_t m, int64_t value) const {
    const size_t node = made_by_[static_cast<size_t>(value)];
    return node >= modules_[m].first_node || node < modules_.front().first_node ||
           constant_[static_cast<size_t>(value)] ||
           std::ranges::find(kViews, graph_.nodes[node].op) != std::end(kViews);
  }

  void give_inputs(size_t m) {
    std::set<int64_t> seen(modules_[m].outputs.begin(), modules_[m].outputs.end()), saved;
    std::vector<int64_t> open(seen.begin(), seen.end());
    while (!open.empty()) {
      const int64_t value = open.back();
      open.pop_back();
      const size_t node = made_by_[static_cast<size_t>(value)];
      if (node == kNone) {
        continue; // an input
      }
      if (!computes(m, value)) {
        saved.insert(value);
        continue;
      }
      for (const auto& values : graph_.nodes[node].inputs) {
        for (const int64_t input : values) {
          if (input >= 0 && seen.insert(input).second) {
            open.push_back(input);
          }
        }
      }
    }
    RecordedModule& taker = modules_[m];
    taker.inputs.clear();
    taker.module.inputs.clear();
    for (const auto& [value, input] : declared_) {
      if (seen.contains(value)) {
        require_kept(input, m);
        taker.inputs.push_back(value);
        taker.module.inputs.push_back(input.port);
      }
    }
    for (const int64_t value : saved) {
      taker.inputs.push_back(value);
      taker.module.inputs.push_back(save(value));
    }
  }

  /// A name means the value of the module that wrote it last.
  void require_kept(const Declared& input, size_t m) const {
    for (size_t earlier = input.module; earlier < m; ++earlier) {
      const auto& outputs = modules_[earlier].module.outputs;
      MH_ASSERT(
          std::ranges::find(outputs, input.port.name, &Port::name) == outputs.end(),
          modules_[m].module.name + " reads " + input.port.name + " after it was written"
      );
    }
  }

  /// Makes a value a result of the module that computes it, once.
  Port save(int64_t value) {
    const size_t node = made_by_[static_cast<size_t>(value)];
    const auto next = std::ranges::upper_bound(modules_, node, {}, &RecordedModule::first_node);
    RecordedModule& maker = *std::prev(next);
    const GraphValue& what = graph_.value(value);
    const std::string name = maker.module.name + ".saved." + std::to_string(saved_.size());
    const Port port{name, what.dtype, what.sizes};
    const auto [known, is_new] = saved_.emplace(value, port);
    if (is_new) {
      maker.outputs.push_back(value);
      maker.module.outputs.push_back(port);
    }
    return known->second;
  }

  const Graph& graph_;
  std::span<RecordedModule> modules_;
  std::vector<size_t> made_by_; // the node of each value
  std::vector<bool> constant_;  // whether a value depends on no input
  std::map<int64_t, Declared> declared_;
  std::map<int64_t, Port> saved_;
};

} // namespace

void cut(const Graph& recorded, std::span<RecordedModule> ret_modules) {
  ChainCutter(recorded, ret_modules).run();
}

} // namespace mh::program
