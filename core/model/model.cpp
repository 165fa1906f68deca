#include "megahost/model.hpp"

#include "core/model/fp8.hpp"
#include "core/model/outline.hpp"
#include "core/model/plugin_call.hpp"
#include "core/model/recompute.hpp"
#include "core/model/token_mixing.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/cache.hpp"
#include "megahost/saved.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>

namespace mh {

/// A block, and what its pass keeps.
struct KeptBlock {
  std::unique_ptr<Block> block;
  std::string name;  // as its parameters begin
  PluginPlace place; // plugin that its calls run in
  Keep keep;
  std::vector<Parameter*> parameters; // its own, then those of others
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Blocks = std::span<const KeptBlock>;

/// A block's output, unchanged: its backward pass begins by asking for the parameters' values.
struct AskAgain : torch::autograd::Function<AskAgain> {
  struct Saved {
    const KeptBlock* block;
  };

  static variable_list
  forward(AutogradContext* ctx, at::TensorList results, const KeptBlock& block) {
    save(ctx, Saved{&block});
    ctx->set_materialize_grads(false);
    variable_list same;
    for (const auto& result : results) {
      same.push_back(result.view_as(result));
    }
    return same;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& parameters = get_saved<Saved>(ctx).block->parameters;
    (void)parameters.front()->listener->needed(parameters);
    gradients.emplace_back();
    return gradients;
  }
};

State asking_again(const KeptBlock& kept, State state) {
  variable_list results;
  for (const auto& [name, activation] : state) {
    if (activation.value.requires_grad()) {
      results.push_back(activation.value);
    }
  }
  if (results.empty() || !at::GradMode::is_enabled()) {
    return state;
  }
  results = AskAgain::apply(at::TensorList(results), kept);
  State same = state;
  size_t i = 0;
  for (const auto& [name, activation] : state) {
    if (activation.value.requires_grad()) {
      same.set(name, results[i++], activation.dims);
    }
  }
  return same;
}

PluginPlace place_in(const KeptBlock& kept, const char* call) {
  PluginPlace place = kept.place;
  place.call = call;
  place.block = kept.name.c_str();
  return place;
}

/// The backward pass of a block begins where the gradient of what it returned has come; of what it
/// made, not of what passed through it.
void mark_backward(const KeptBlock& kept, const State& inputs, const State& results) {
  for (const auto& [name, activation] : results) {
    const bool passed = inputs.has(name) && inputs[name].value.is_same(activation.value);
    if (at::GradMode::is_enabled() && activation.value.requires_grad() && !passed) {
      activation.value.register_hook([&kept](const at::Tensor&) {
        plugin_place() = place_in(kept, "backward");
      });
    }
  }
}

/// Runs a block, which profiles name as its parameters.
State forward_block(const KeptBlock& kept, const State& state, StepContext& context) {
  auto* listener = kept.parameters.empty() ? nullptr : kept.parameters.front()->listener;
  const bool again = listener != nullptr && listener->needed(kept.parameters);
  at::RecordFunction scope(at::RecordScope::USER_SCOPE);
  if (scope.isActive()) {
    scope.before(kept.name);
  }
  State results =
      in_plugin(place_in(kept, "forward"), [&] { return kept.block->forward(state, context); });
  mark_backward(kept, state, results);
  return again ? asking_again(kept, std::move(results)) : results;
}

/// How many of the first blocks run once for a text that grows.
size_t once_of(Blocks blocks) {
  const auto grows = [](const KeptBlock& kept) { return !kept.block->runs_once(); };
  return static_cast<size_t>(std::find_if(blocks.begin(), blocks.end(), grows) - blocks.begin());
}

/// Runs blocks [begin, end) keeping only the first one's input. Losses that they add come out of
/// the recomputed part with the state, since only what it returns carries gradients.
State recomputed_blocks(
    Blocks all, size_t begin, size_t end, const State& state, StepContext& context
) {
  std::vector<at::Tensor> inputs;
  for (const auto& [name, activation] : state) {
    inputs.push_back(activation.value);
  }
  auto shape = std::make_shared<State>(); // names and dimensions of the result
  auto losses = std::make_shared<std::vector<Loss>>();
  const auto results = recomputed(
      [all, begin, end, state, &context, shape, losses](const auto& values) {
        StepContext inner = context.again();
        State output = state;
        size_t i = 0;
        for (const auto& [name, activation] : state) {
          output.set(name, values[i++], activation.dims);
        }
        for (size_t block = begin; block < end; ++block) {
          output = forward_block(all[block], output, inner);
        }
        const auto added = inner.take_losses();
        std::vector<at::Tensor> outputs;
        for (const auto& [name, activation] : output) {
          outputs.push_back(activation.value);
        }
        for (const auto& loss : added) {
          outputs.push_back(loss.sum);
        }
        if (!at::GradMode::is_enabled()) { // the first run, not the one in backward
          *shape = output;
          *losses = added;
        }
        return outputs;
      },
      inputs
  );
  State output = *shape;
  size_t i = 0;
  for (const auto& [name, activation] : *shape) {
    output.set(name, results[i++], activation.dims);
  }
  for (auto loss : *losses) {
    loss.sum = results[i++];
    context.add_loss(std::move(loss));
  }
  *shape = State();
  losses->clear();
  return output;
}

/// Whether a pass says something of how blocks mix tokens.
bool shows_mixing(const StepContext& context) {
  const auto& arrays = context.batch().arrays;
  return !arrays.empty() && !arrays.begin()->second.is_meta() && keeps_tokens_apart(context);
}

void check_blocks(Blocks blocks, const State& first, const StepContext& context, bool coarse) {
  const MixingTrial trial;
  State state = first;
  for (const KeptBlock& kept : blocks) {
    const auto run = [&kept](const State& input, StepContext& apart) {
      return forward_block(kept, input, apart);
    };
    state = check_token_mixing({kept.name, kept.parameters, coarse, run}, state, context);
  }
}

} // namespace

/// The tensors that pass between the chunks of a pipeline.
class Model::Boundaries {
public:
  /// `first` are the first blocks of all chunks but the first.
  Boundaries(Outline outline, std::vector<int64_t> first, const Builder::Args& args)
      : outline_(std::move(outline))
      , mesh_(*args.mesh)
      , rules_(*args.rules)
      , first_(std::move(first)) {}

  /// Into chunk `chunk` of the model, from 1.
  const std::vector<Passed>& before(int64_t chunk, const Batch& batch) {
    std::string key;
    for (const auto& [name, array] : batch.arrays) {
      key += name + c10::str(array.sizes());
    }
    auto found = known_.find(key);
    if (found == known_.end()) {
      found = known_.emplace(key, find(batch)).first;
    }
    return found->second.at(static_cast<size_t>(chunk - 1));
  }

private:
  /// The model sees this rank's tokens as if they were all; then sizes are those of all ranks'.
  std::vector<std::vector<Passed>> find(const Batch& batch) {
    const int64_t cp = mesh_.size(MeshAxis::cp);
    const int64_t dp = mesh_.size(MeshAxis::dp);
    Batch local = batch;
    local.seq /= cp;
    local.batch /= dp;
    for (auto& [name, length] : local.sequences) {
      length /= cp;
    }
    std::vector<std::vector<Passed>> all;
    for (const State& state : outline_.states_before(first_, local)) {
      std::vector<Passed>& passed = all.emplace_back();
      for (const auto& [name, activation] : state) {
        Dims dims = activation.dims;
        for (Axis& axis : dims) {
          axis.size *= axis.logical == axis::seq ? cp : axis.logical == axis::batch ? dp : 1;
        }
        passed.push_back(
            {name,
             dims,
             local_sizes(dims, rules_.place(dims, mesh_), mesh_),
             activation.value.scalar_type(),
             activation.value.requires_grad()}
        );
      }
    }
    return all;
  }

  Outline outline_;
  const Mesh& mesh_;
  const Rules& rules_;
  std::vector<int64_t> first_;
  std::map<std::string, std::vector<std::vector<Passed>>> known_;
};

struct Model::Blocks {
  int64_t number = 0; // index among the model's chunks
  std::vector<KeptBlock> blocks;
  bool fp8 = false;
  mutable std::array<bool, 2> mixing_checked{}; ///< in evaluation, in training
};

namespace {

/// The index of each chunk of the model in `chunks`: these lie by stages; their contents give the
/// order in which they follow one another.
std::vector<size_t> model_order(const std::vector<ModelChunk>& chunks) {
  std::vector<size_t> order(chunks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t c) {
      return std::tuple(chunks[c].first, chunks[c].head, chunks[c].layers);
    };
    return key(a) < key(b);
  });
  return order;
}

/// The stages that hold each shared parameter of a model.
std::map<std::string, std::set<int64_t>>
shared_stages(const Outline& outline, const std::vector<int64_t>& stage_of_block) {
  std::map<std::string, std::set<int64_t>> shared;
  for (size_t block = 0; block < outline.parts().size(); ++block) {
    for (const auto& name : outline.parts()[block].shares) {
      shared[name].insert(stage_of_block[block]);
      shared[name].insert(stage_of_block.at(static_cast<size_t>(outline.maker(name))));
    }
  }
  return shared;
}

std::vector<int64_t> blocks_of(const ModelChunk& chunk, int64_t layers) {
  std::vector<int64_t> blocks;
  if (chunk.embedding) {
    blocks.push_back(0);
  }
  for (int64_t i = 0; i < chunk.layers; ++i) {
    blocks.push_back(chunk.first + i + 1);
  }
  if (chunk.head) {
    blocks.push_back(layers + 1);
  }
  return blocks;
}

/// Makes a parameter as the block does that it belongs to, which may itself need others'.
void copy_shared(
    const std::string& name,
    const Outline& outline,
    const Architecture& architecture,
    const Builder::Args& args,
    ParameterStore& store
) {
  if (store.find(name) != nullptr) {
    return;
  }
  const int64_t maker = outline.maker(name);
  ParameterStore others;
  for (const auto& needed : outline.parts()[static_cast<size_t>(maker)].shares) {
    copy_shared(needed, outline, architecture, args, others);
  }
  Builder builder(others, args);
  (void)make_block(architecture, maker, builder);
  Parameter* parameter = others.find(name);
  MH_ASSERT(parameter != nullptr, "a block makes other parameters than the last time");
  store.add(std::move(*parameter));
}

} // namespace

Model::Model(
    const Architecture& architecture, const Builder::Args& given, const RecomputePolicy* policy
)
    : store_(std::make_unique<ParameterStore>()) {
  Builder::Args args = given;
  args.sequences = architecture.sequences();
  const int64_t layers = layer_count(architecture);
  const int64_t stages = args.mesh->size(MeshAxis::pp);
  const int64_t stage = args.mesh->coordinate(MeshAxis::pp);
  const std::vector<ModelChunk> chunks =
      args.chunks.empty() ? std::vector<ModelChunk>{{0, layers, true, true}} : args.chunks;
  MH_ASSERT(
      static_cast<int64_t>(chunks.size()) % stages == 0, "each pipeline stage has as many chunks"
  );
  const auto order = model_order(chunks);
  std::optional<Outline> outline;
  std::map<std::string, std::set<int64_t>> shared;
  if (chunks.size() > 1) {
    outline.emplace(architecture, args);
    std::vector<int64_t> stage_of_block;
    for (const size_t c : order) {
      const size_t blocks = blocks_of(chunks[c], layers).size();
      stage_of_block.insert(stage_of_block.end(), blocks, static_cast<int64_t>(c) % stages);
    }
    MH_ASSERT(stage_of_block.size() == outline->parts().size(), "chunks hold each block once");
    shared = shared_stages(*outline, stage_of_block);
  }
  Builder builder(*store_, args);
  int64_t layer = 0, blocks = 0; // counted within this stage
  for (auto c = static_cast<size_t>(stage); c < chunks.size(); c += static_cast<size_t>(stages)) {
    Blocks& own = chunks_.emplace_back();
    own.fp8 = args.fp8.has_value();
    own.number = std::find(order.begin(), order.end(), c) - order.begin();
    for (const int64_t block : blocks_of(chunks[c], layers)) {
      const size_t known = store_->all().size();
      const size_t shares = builder.shared_names().size();
      if (outline) {
        for (const auto& name : outline->parts()[static_cast<size_t>(block)].shares) {
          copy_shared(name, *outline, architecture, args, *store_);
        }
      }
      Keep keep;
      if (block > 0 && block <= layers && policy != nullptr) {
        keep = in_plugin(*policy, "keep", [&] { return policy->keep(layer++); });
        keep.joined = keep.joined && !own.blocks.empty() && block > chunks[c].first + 1;
      }
      own.blocks.push_back(
          {make_block(architecture, block, builder),
           block_name(architecture, block),
           place_of(architecture, "forward"),
           keep,
           {}}
      );
      auto& parameters = own.blocks.back().parameters;
      for (size_t i = known; i < store_->all().size(); ++i) {
        parameters.push_back(&store_->all()[i]);
        parameters.back()->block = blocks;
      }
      for (size_t i = shares; i < builder.shared_names().size(); ++i) {
        parameters.push_back(store_->find(builder.shared_names()[i]));
      }
      ++blocks;
    }
  }
  for (const auto& [name, holders] : shared) {
    Parameter* parameter = holders.size() > 1 ? store_->find(name) : nullptr;
    for (size_t i = 0; parameter != nullptr && i < parameter->pieces.size(); ++i) {
      parameter->pieces[i].stages = {holders.begin(), holders.end()};
      parameter->pieces[i].copies *= static_cast<int64_t>(holders.size());
    }
  }
  flops_ = outline ? outline->flops() : builder.flops;
  elements_ = outline ? outline->elements() : store_->global_elements();
  if (outline) {
    std::vector<int64_t> first;
    for (size_t i = 1; i < order.size(); ++i) {
      first.push_back(chunks[order[i]].first + 1); // block 0 is the embedding
    }
    boundaries_ = std::make_unique<Boundaries>(std::move(*outline), std::move(first), args);
  }
  if (const auto& fp8 = builder.fp8()) {
    fp8->allocate(*store_, args.device);
    builder.at_step_end(fp8);
  }
  step_states_ = builder.step_states();
}

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;

State Model::forward(StepContext& context) const {
  MH_ASSERT(boundaries_ == nullptr, "this rank has only a part of the model");
  return forward(0, State(), context);
}

State Model::forward(int64_t chunk, const State& state, StepContext& context) const {
  const Blocks& own = chunks_.at(static_cast<size_t>(chunk));
  const mh::Blocks blocks = own.blocks;
  // Before the first pass of training and of evaluation; in the checking mode before the first of
  // each step.
  const bool again = context.mode().checking && context.mode().microbatch == 0;
  bool& checked = own.mixing_checked.at(context.mode().training ? 1 : 0);
  if ((!std::exchange(checked, true) || again) && shows_mixing(context)) {
    check_blocks(blocks, state, context, own.fp8);
  }
  State passed = state;
  size_t i = 0;
  if (KeyValueCache* cache = context.mode().kv_cache) {
    i = once_of(blocks);
    passed = cache->once([&] {
      State made = state;
      for (const KeptBlock& kept : blocks.first(i)) {
        made = forward_block(kept, made, context);
      }
      return made;
    });
  }
  while (i < blocks.size()) {
    if (blocks[i].keep.everything) {
      const auto plan = context.keeping(blocks[i].keep);
      passed = forward_block(blocks[i++], passed, context);
      continue;
    }
    size_t end = i + 1;
    while (end < blocks.size() && blocks[end].keep.joined) {
      ++end;
    }
    passed = recomputed_blocks(blocks, i, end, passed, context);
    i = end;
  }
  return passed;
}

bool Model::reads_cache() const {
  return std::all_of(chunks_.begin(), chunks_.end(), [](const Blocks& own) {
    const mh::Blocks grow = mh::Blocks(own.blocks).subspan(once_of(own.blocks));
    return std::all_of(grow.begin(), grow.end(), [](const KeptBlock& kept) {
      PluginPlace place = kept.place;
      place.call = "reads_cache";
      place.block = kept.name.c_str();
      return in_plugin(place, [&] { return kept.block->reads_cache(); });
    });
  });
}

int64_t Model::chunks() const {
  return static_cast<int64_t>(chunks_.size());
}

const std::vector<Passed>& Model::input(int64_t chunk, const Batch& batch) const {
  static const std::vector<Passed> nothing;
  const int64_t number = chunks_.at(static_cast<size_t>(chunk)).number;
  return number == 0 ? nothing : boundaries_->before(number, batch);
}

const std::vector<Passed>& Model::output(int64_t chunk, const Batch& batch) const {
  static const std::vector<Passed> nothing;
  const auto& own = chunks_.at(static_cast<size_t>(chunk));
  const bool last = own.blocks.back().name == "head";
  return last ? nothing : boundaries_->before(own.number + 1, batch);
}

void Model::end_step(const Mesh& mesh) const {
  for (const auto& state : step_states_) {
    state->update(mesh);
  }
}

void Model::forget_step() const {
  for (const auto& state : step_states_) {
    state->forget();
  }
}

StepState::~StepState() = default;
Block::~Block() = default;
Architecture::~Architecture() = default;

void backward(const at::Tensor& scalar) {
  in_backward([&] { torch::autograd::backward({scalar}, {}); });
}

} // namespace mh
