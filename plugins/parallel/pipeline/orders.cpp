#include "orders.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

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

Order zero_bubble_vee(const Args& args) {
  if (args.virtual_stages != 2 || args.stages == 1) {
    throw Error(
        "parallel.schedule \"zb-v\" has two chunks of layers on each of several stages, but "
        "parallel.virtual_stages is " +
            std::to_string(args.virtual_stages) + " and parallel.pipeline " +
            std::to_string(args.stages),
        "set parallel.virtual_stages = 2 and parallel.pipeline above 1"
    );
  }
  const int64_t p = args.stages, m = args.microbatches;
  const int64_t all =
      std::max(m, 2 * p - 1); // fewer fill no V: those that are not there are skipped
  Order order{.chunks = ChunkOrder::vee};
  for (int64_t stage = 0; stage < p; ++stage) {
    List& list = order.passes.emplace_back();
    std::map<std::pair<Op, int64_t>, int64_t> added;
    const auto add = [&](Op op, int64_t chunk) {
      if (const int64_t microbatch = added[{op, chunk}]++; microbatch < m) {
        list.push_back(make(op, chunk, microbatch));
      }
    };
    const auto forward = [&](int64_t chunk) { add(Op::forward, chunk); };
    const auto backward = [&](int64_t chunk) {
      add(Op::backward_input, chunk);
      add(Op::backward_weight, chunk);
    };
    const auto times = [](int64_t count, const auto& act) {
      for (int64_t i = 0; i < count; ++i) {
        act();
      }
    };
    times(2 * (p - stage) - 1, [&] { forward(0); }); // until the first comes back up
    times(stage, [&] {
      forward(1);
      forward(0);
    });
    times(p - stage, [&] {
      forward(1);
      backward(1);
    });
    times(all - p, [&] {
      if (added[{Op::forward, 0}] < all) {
        forward(0);
      }
      backward(0);
      forward(1);
      backward(1);
    });
    times(stage, [&] { // the stages before wait for these: weights come after them
      add(Op::backward_input, 0);
      add(Op::backward_input, 1);
    });
    times(p - stage, [&] { backward(0); });
    times(stage, [&] { add(Op::backward_weight, 1); });
    times(stage, [&] { add(Op::backward_weight, 0); });
    order.most_live.push_back(std::min(m, 2 * p - 1 - stage) + std::min(m, stage + 1));
  }
  return order;
}

} // namespace mh::pipeline
