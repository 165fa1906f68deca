#include "core/graph/repetitions.hpp"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace mh::program {

namespace {

constexpr size_t kFewest = 3; // parts of a loop

/// Operators whose second argument is written as a tensor of the result's shape, number or not.
constexpr std::string_view kTakeTensor[] = {
    "aten::add.Scalar",
    "aten::bitwise_and.Scalar",
    "aten::bitwise_or.Scalar",
    "aten::bitwise_xor.Scalar",
    "aten::div.Scalar",
    "aten::mul.Scalar",
    "aten::rsub.Scalar",
    "aten::sub.Scalar"};

void describe(std::ostream& text, const GraphValue& value) {
  text << c10::toString(value.dtype) << c10::IntArrayRef(value.sizes);
}

/// A text that is the same for nodes that can be one node of a loop.
std::string likeness(const Graph& graph, const Node& node) {
  std::ostringstream text;
  text << node.op;
  for (size_t k = 0; k < node.arguments.size(); ++k) {
    text << '|';
    if (!takes_tensor(node, k)) {
      text << node.arguments[k];
    }
    for (const int64_t value : node.inputs[k]) {
      if (value >= 0) {
        describe(text, graph.value(value));
      }
      text << ','; // so that gaps are seen
    }
  }
  for (const auto& [k, numbers] : node.of_ranks) {
    text << '#' << k << ':';
    std::copy(numbers.begin(), numbers.end(), std::ostream_iterator<at::Scalar>(text, " "));
  }
  for (const int64_t value : node.outputs) {
    if (value >= 0) {
      describe(text << ';', graph.value(value));
    }
  }
  return text.str();
}

/// A number for each node: the same for those that are alike. Constants are like no other.
std::vector<int64_t> likenesses(const Graph& graph) {
  std::unordered_map<std::string, int64_t> numbers;
  std::vector<int64_t> all;
  for (const Node& node : graph.nodes) {
    const auto next = static_cast<int64_t>(numbers.size());
    const std::string text = node.op.empty() ? std::to_string(all.size()) : likeness(graph, node);
    all.push_back(numbers.emplace(text, next).first->second);
  }
  return all;
}

bool has_same_numbers(const Node& a, const Node& b) {
  for (size_t k = 0; k < a.arguments.size(); ++k) {
    if (!takes_tensor(a, k) && !(a.arguments[k] == b.arguments[k])) {
      return false;
    }
  }
  return true;
}

class PartSearch {
public:
  explicit PartSearch(const Graph& graph)
      : graph_(graph)
      , origins_(graph)
      , alike_(likenesses(graph)) {}

  /// Adds the repetitions among nodes [begin, end).
  void run(size_t begin, size_t end, std::vector<AlikeParts>& ret_found) const {
    for (AlikeParts one : candidates(begin, end)) {
      if (shrink(one) && saves(one)) {
        run(begin, one.begin, ret_found);
        ret_found.push_back(one);
        run(one.end(), end, ret_found);
        return;
      }
    }
  }

private:
  /// The longest one of each period, those of most nodes first.
  std::vector<AlikeParts> candidates(size_t begin, size_t end) const {
    std::vector<AlikeParts> found;
    for (size_t period = 1; begin + kFewest * period <= end; ++period) {
      size_t longest = 0, first = begin, run = 0;
      for (size_t i = begin; i + period < end; ++i) {
        run = alike_[i] == alike_[i + period] ? run + 1 : 0;
        if (run > longest) {
          longest = run;
          first = i + 1 - run;
        }
      }
      AlikeParts one{first, period, longest / period + 1};
      if (one.count >= kFewest) {
        one.begin = best_begin(one, longest % period);
        found.push_back(one);
      }
    }
    std::ranges::stable_sort(found, std::greater(), [](const AlikeParts& one) {
      return one.period * one.count;
    });
    return found;
  }

  /// Where the parts are to begin, up to so many nodes later, so that least is carried.
  size_t best_begin(AlikeParts one, size_t later) const {
    size_t best = one.begin;
    int64_t least = -1;
    for (const size_t last = one.begin + later; one.begin <= last; ++one.begin) {
      std::set<int64_t> carried;
      for (size_t j = one.period; j < 2 * one.period; ++j) {
        for (const auto& values : graph_.nodes[one.begin + j].inputs) {
          for (const int64_t value : values) {
            const auto place = origins_.place(value, one);
            if (place && place->part == 0) {
              carried.insert(value);
            }
          }
        }
      }
      int64_t elements = 0;
      for (const int64_t value : carried) {
        elements += c10::multiply_integers(graph_.value(value).sizes);
      }
      if (least < 0 || elements < least) {
        least = elements;
        best = one.begin;
      }
    }
    return best;
  }

  /// The parts that a loop can run; whether there are enough.
  bool shrink(AlikeParts& ret_one) const {
    while (ret_one.count >= kFewest) {
      const size_t fit = parts_that_fit(ret_one);
      if (fit == ret_one.count) {
        return true;
      }
      if (fit >= kFewest) {
        ret_one.count = fit;
      } else {
        ret_one.begin += ret_one.period;
        --ret_one.count;
      }
    }
    return false;
  }

  /// How many parts, from the first on, read by one rule.
  size_t parts_that_fit(const AlikeParts& one) const {
    size_t fit = one.count;
    for (size_t j = 0; j < one.period; ++j) {
      const Node& node = graph_.nodes[one.begin + j];
      for (size_t part = 1; part < fit; ++part) {
        if (!has_same_numbers(node, graph_.nodes[one.begin + part * one.period + j])) {
          fit = part;
        }
      }
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        for (size_t i = 0; i < node.inputs[k].size(); ++i) {
          auto values = values_of_parts(graph_, one, j, k, i);
          values.resize(fit);
          while (fit > 0 && source_of(values, one, origins_) == PartSource::none) {
            values.resize(--fit);
          }
        }
      }
    }
    return fit;
  }

  /// Whether parts read inputs of the graph, each others, and a loop has less nodes than its parts.
  bool saves(const AlikeParts& one) const {
    std::set<std::vector<int64_t>> rows;
    bool reads_inputs = false;
    for (size_t j = 0; j < one.period; ++j) {
      const Node& node = graph_.nodes[one.begin + j];
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        for (size_t i = 0; i < node.inputs[k].size(); ++i) {
          const auto values = values_of_parts(graph_, one, j, k, i);
          if (source_of(values, one, origins_) == PartSource::row) {
            reads_inputs = reads_inputs || !origins_.node(values.front());
            rows.insert(values);
          }
        }
      }
    }
    return reads_inputs && rows.size() < one.period;
  }

  const Graph& graph_;
  Origins origins_;
  std::vector<int64_t> alike_;
};

} // namespace

Origins::Origins(const Graph& graph)
    : nodes_(graph.values.size(), -1)
    , outputs_(graph.values.size(), -1) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (size_t k = 0; k < graph.nodes[i].outputs.size(); ++k) {
      if (const int64_t value = graph.nodes[i].outputs[k]; value >= 0) {
        nodes_[static_cast<size_t>(value)] = static_cast<int64_t>(i);
        outputs_[static_cast<size_t>(value)] = static_cast<int64_t>(k);
      }
    }
  }
}

std::optional<size_t> Origins::node(int64_t value) const {
  const bool known = value >= 0 && value < std::ssize(nodes_);
  const int64_t node = known ? nodes_[static_cast<size_t>(value)] : -1;
  return node < 0 ? std::nullopt : std::optional(static_cast<size_t>(node));
}

std::optional<Origins::Place> Origins::place(int64_t value, const AlikeParts& of) const {
  const auto made = node(value);
  if (!made || *made < of.begin || *made >= of.end()) {
    return std::nullopt;
  }
  const size_t at = *made - of.begin;
  return Place{
      at / of.period, at % of.period, static_cast<size_t>(outputs_[static_cast<size_t>(value)])};
}

PartSource
source_of(const std::vector<int64_t>& values, const AlikeParts& of, const Origins& origins) {
  if (values.front() < 0) { // a tensor that none of them is given
    return PartSource::shared;
  }
  const auto first = origins.place(values.front(), of);
  const auto is_made = [&](size_t part, size_t by, const Origins::Place& like) {
    const auto place = origins.place(values[part], of);
    return place && place->part == by && place->node == like.node && place->output == like.output;
  };
  if (first) {
    for (size_t part = 0; part < values.size(); ++part) {
      if (!is_made(part, part, *first)) {
        return PartSource::none;
      }
    }
    return PartSource::own;
  }
  const auto second = values.size() > 1 ? origins.place(values[1], of) : std::nullopt;
  bool same = true;
  for (size_t part = 1; part < values.size(); ++part) {
    if (second ? !is_made(part, part - 1, *second) : origins.place(values[part], of).has_value()) {
      return PartSource::none;
    }
    same = same && values[part] == values.front();
  }
  return second ? PartSource::carried : same ? PartSource::shared : PartSource::row;
}

std::vector<int64_t> values_of_parts(
    const Graph& graph, const AlikeParts& of, size_t node, size_t argument, size_t number
) {
  std::vector<int64_t> values;
  for (size_t part = 0; part < of.count; ++part) {
    values.push_back(graph.nodes[of.begin + part * of.period + node].inputs.at(argument).at(number)
    );
  }
  return values;
}

bool takes_tensor(const Node& node, size_t argument) {
  return argument == 1 && !node.of_ranks.contains(argument) && node.inputs[argument].empty() &&
         std::ranges::find(kTakeTensor, node.op) != std::end(kTakeTensor);
}

std::vector<AlikeParts> find_repetitions(const Graph& graph) {
  std::vector<AlikeParts> found;
  PartSearch(graph).run(0, graph.nodes.size(), found);
  return found;
}

} // namespace mh::program
