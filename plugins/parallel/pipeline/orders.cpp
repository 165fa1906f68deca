#include "orders.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <string>

namespace mh::pipeline {

namespace {

using Op = Instruction::Op;
using List = std::vector<Instruction>;

Instruction make(Op op, int64_t chunk, int64_t microbatch) {
  return {op, static_cast<int32_t>(chunk), static_cast<int32_t>(microbatch)};
}

/// Forward passes, and backward ones `ahead` passes later. `forward` and `backward` add the i-th of
/// `count`.
template <class Forward, class Backward>
void alternate(int64_t count, int64_t ahead, const Forward& forward, const Backward& backward) {
  for (int64_t i = 0; i < count + ahead; ++i) {
    if (i < count) {
      forward(i);
    }
    if (i >= ahead) {
      backward(i - ahead);
    }
  }
}

/// 1F1B over several chunks a stage.
Order interleaved(const Args& args) {
  const int64_t p = args.stages, v = args.virtual_stages, m = args.microbatches;
  if (p == 1) {
    throw Error(
        "parallel.virtual_stages " + std::to_string(v) + " needs parallel.pipeline above 1",
        "set parallel.virtual_stages = 1"
    );
  }
  if (m % p != 0) {
    const int64_t below = m / p * p;
    throw Error(
        std::to_string(m) + " microbatches are not divisible by parallel.pipeline " +
            std::to_string(p) + ", which parallel.virtual_stages " + std::to_string(v) + " needs",
        "choose batch.global for " + (below > 0 ? std::to_string(below) + " or " : std::string()) +
            std::to_string(below + p) + " microbatches, or parallel.virtual_stages = 1"
    );
  }
  Order order;
  for (int64_t stage = 0; stage < p; ++stage) {
    List& list = order.passes.emplace_back();
    // The i-th pass; backward goes through the chunks the other way.
    const auto add = [&](Op op, int64_t i) {
      const int64_t group = i / (p * v), chunk = i % (p * v) / p;
      list.push_back(make(op, op == Op::forward ? chunk : v - 1 - chunk, group * p + i % p));
    };
    const int64_t ahead = std::min(2 * (p - stage - 1) + (v - 1) * p, m * v);
    alternate(
        m * v,
        ahead,
        [&](int64_t i) { add(Op::forward, i); },
        [&](int64_t i) { add(Op::backward, i); }
    );
    order.most_live.push_back(std::min(ahead + 1, m * v));
  }
  return order;
}

} // namespace

Order gpipe(const Args& args) {
  Order order;
  List list;
  for (int64_t chunk = 0; chunk < args.virtual_stages; ++chunk) {
    for (int64_t m = 0; m < args.microbatches; ++m) {
      list.push_back(make(Op::forward, chunk, m));
    }
  }
  for (int64_t chunk = args.virtual_stages - 1; chunk >= 0; --chunk) {
    for (int64_t m = 0; m < args.microbatches; ++m) {
      list.push_back(make(Op::backward, chunk, m));
    }
  }
  const auto stages = static_cast<size_t>(args.stages);
  order.passes.assign(stages, list);
  order.most_live.assign(stages, args.microbatches * args.virtual_stages);
  return order;
}

Order one_forward_one_backward(const Args& args) {
  if (args.virtual_stages > 1) {
    return interleaved(args);
  }
  Order order;
  for (int64_t stage = 0; stage < args.stages; ++stage) {
    List& list = order.passes.emplace_back();
    const int64_t ahead = std::min(args.stages - stage - 1, args.microbatches);
    alternate(
        args.microbatches,
        ahead,
        [&](int64_t m) { list.push_back(make(Op::forward, 0, m)); },
        [&](int64_t m) { list.push_back(make(Op::backward, 0, m)); }
    );
    order.most_live.push_back(std::min(ahead + 1, args.microbatches));
  }
  return order;
}

Order zero_bubble(const Args& args) {
  if (args.virtual_stages > 1) {
    throw Error(
        "parallel.schedule \"zb-h1\" has one chunk of layers a stage, but parallel.virtual_stages "
        "is " +
            std::to_string(args.virtual_stages),
        "set parallel.virtual_stages = 1, or parallel.schedule = \"1f1b\""
    );
  }
  Order order;
  for (int64_t stage = 0; stage < args.stages; ++stage) {
    List& list = order.passes.emplace_back();
    const int64_t ahead = std::min(args.stages - stage - 1, args.microbatches);
    int64_t weights = 0;
    const auto add_weights = [&](int64_t until) {
      for (; weights < until; ++weights) {
        list.push_back(make(Op::backward_weight, 0, weights));
      }
    };
    alternate(
        args.microbatches,
        ahead,
        [&](int64_t m) { list.push_back(make(Op::forward, 0, m)); },
        [&](int64_t m) {
          list.push_back(make(Op::backward_input, 0, m));
          add_weights(m + 1 - stage);
        }
    );
    add_weights(args.microbatches);
    order.most_live.push_back(std::min(args.stages, args.microbatches));
  }
  return order;
}

} // namespace mh::pipeline
