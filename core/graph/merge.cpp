#include "core/graph/merge.hpp"

#include "megahost/error.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <string>
#include <utility>

namespace mh::program {

namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(
      "ranks would need programs of their own: " + what,
      "choose a layout in which all ranks do the same to pieces of one size, and a model.vocab that "
      "tensor-parallel ranks share without padding: a multiple of 128 for each"
  );
}

std::string name_of(const Node& node) {
  return node.op.empty() ? "a constant" : node.op;
}

void require_same_form(const Graph& first, const Graph& other) {
  if (first.nodes.size() != other.nodes.size()) {
    refuse(
        "one calls " + std::to_string(first.nodes.size()) + " operators, another " +
        std::to_string(other.nodes.size())
    );
  }
  for (size_t i = 0; i < first.nodes.size(); ++i) {
    const Node &a = first.nodes[i], &b = other.nodes[i];
    if (a.op != b.op || a.inputs != b.inputs || a.outputs != b.outputs ||
        a.arguments.size() != b.arguments.size()) {
      refuse("where one calls " + name_of(a) + ", another calls " + name_of(b));
    }
    for (const int64_t value : a.outputs) {
      if (value >= 0 && (first.value(value).sizes != other.value(value).sizes ||
                         first.value(value).dtype != other.value(value).dtype)) {
        refuse("the result of " + name_of(a) + " has another shape");
      }
    }
  }
}

} // namespace

Graph merge_ranks(std::vector<Graph> ranks, int64_t rank) {
  for (const Graph& other : ranks) {
    require_same_form(ranks.front(), other);
  }
  Graph merged = ranks.front();
  merged.rank = rank;
  for (size_t i = 0; i < merged.nodes.size(); ++i) {
    Node& node = merged.nodes[i];
    const auto all_have = [&](auto&& same) {
      return std::all_of(ranks.begin(), ranks.end(), [&](const Graph& one) {
        return same(one.nodes[i]);
      });
    };
    if (node.op.empty()) {
      if (!all_have([&](const Node& one) { return at::equal(one.constant, node.constant); })) {
        std::vector<at::Tensor> constants;
        for (const Graph& one : ranks) {
          constants.push_back(one.nodes[i].constant);
        }
        node.constant = at::stack(constants);
        node.by_rank = true;
      }
      continue;
    }
    for (size_t k = 0; k < node.arguments.size(); ++k) {
      if (all_have([&](const Node& one) { return one.arguments[k] == node.arguments[k]; })) {
        continue;
      }
      if (!node.arguments[k].isScalar()) {
        refuse("an argument of " + node.op + " differs");
      }
      for (const Graph& one : ranks) {
        node.of_ranks[k].push_back(one.nodes[i].arguments[k].toScalar());
      }
    }
  }
  return merged;
}

} // namespace mh::program
