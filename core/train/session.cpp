#include "core/train/session.hpp"

#include "megahost/error.hpp"
#include "megahost/strategy.hpp"

#include <string>
#include <utility>

namespace mh {
namespace {

at::ScalarType dtype_of(const std::string& precision) {
  if (precision == "fp32") {
    return at::kFloat;
  }
  if (precision == "bf16") {
    return at::kBFloat16;
  }
  throw Error(
      "precision \"" + precision + "\" is not trained yet", "set precision to fp32 or bf16"
  );
}

/// The options of a strategy's plugin: its field `method` is the recipe's `parallel.NAME_method`.
Table strategy_options(const Recipe& recipe, const std::string& name, Host& host) {
  Table options;
  for (const auto& field : host.require(Kind::strategy, name).schema.fields) {
    if (const Value* value = recipe.tree.find_path("parallel." + name + "_" + field.name)) {
      options.set(field.name, *value);
    }
  }
  return options;
}

Rules make_rules(const Recipe& recipe, Host& host, const MeshShape& shape) {
  Rules rules;
  for (const auto& name : strategy_names(recipe)) {
    host.make<Strategy>(name, strategy_options(recipe, name, host), {.shape = shape})->rules(rules);
  }
  return rules;
}

void check_batch(const Recipe& recipe, const MeshShape& shape) {
  const auto& batch = recipe.batch;
  if (batch.global % (batch.micro * shape.dp) != 0) {
    throw Error(
        "batch.global " + std::to_string(batch.global) + " is not divisible by batch.micro " +
            std::to_string(batch.micro) + " times data parallel " + std::to_string(shape.dp),
        "choose batch.global as a multiple of " + std::to_string(batch.micro * shape.dp)
    );
  }
}

} // namespace

std::vector<std::string> strategy_names(const Recipe& recipe) {
  const auto& parallel = recipe.parallel;
  std::vector<std::string> names{"data"};
  const std::pair<bool, const char*> others[] = {
      {parallel.tensor > 1, "tensor"},
      {parallel.sequence, "sequence"},
      {parallel.pipeline > 1, "pipeline"},
      {parallel.context > 1, "context"},
      {parallel.expert > 1, "expert"},
      {parallel.zero > 0, "zero"},
  };
  for (const auto& [wanted, name] : others) {
    if (wanted) {
      names.emplace_back(name);
    }
  }
  return names;
}

MeshShape mesh_shape(const Recipe& recipe, int64_t world) {
  const auto& parallel = recipe.parallel;
  return {
      .pp = parallel.pipeline,
      .dp = parallel.data_degree(world),
      .cp = parallel.context,
      .tp = parallel.tensor,
      .ep = parallel.expert,
      .etp = parallel.expert_tensor};
}

std::unique_ptr<Session>
make_session(const Recipe& recipe, Host& host, const SessionOptions& options) {
  auto session = std::make_unique<Session>();
  auto& s = *session;
  s.recipe = recipe;
  World world = options.processes != nullptr ? options.processes->world() : World{};
  if (options.mesh != nullptr) {
    world = {.rank = options.mesh->rank(), .size = options.mesh->world()};
  }
  const auto shape = mesh_shape(recipe, world.size);
  s.rules = make_rules(recipe, host, shape);
  if (shape.world() != world.size) {
    throw Error(
        "this layout needs " + std::to_string(shape.world()) + " ranks, this run has " +
            std::to_string(world.size),
        "change the degrees in `parallel`, or start with --nproc " + std::to_string(shape.world())
    );
  }
  check_batch(recipe, shape);
  if (options.mesh != nullptr) {
    s.mesh = *options.mesh;
  } else if (options.processes != nullptr) {
    s.mesh = Mesh(shape, world.rank, options.processes->make_backend(), recipe.parallel.order);
  }
  s.dtype = options.dtype.value_or(dtype_of(recipe.precision));
  s.device = host.make<Device>(recipe.device);
  s.tokenizer = host.make<Tokenizer>(recipe.tokenizer.use, recipe.tokenizer.options);
  s.architecture = host.make<Architecture>(
      recipe.model.use,
      recipe.model.options,
      {.vocab = s.tokenizer->vocab(), .seq_length = recipe.model.seq_length}
  );
  const auto seed = static_cast<uint64_t>(recipe.train.seed);
  if (options.corpus) {
    s.corpus = host.make<Corpus>(
        recipe.data.use,
        recipe.data.options,
        {.tokenizer = s.tokenizer.get(),
         .seq_length = recipe.model.seq_length,
         .vocab = s.architecture->vocab(),
         .split = recipe.data.shares(),
         .seed = seed}
    );
  }
  s.recompute = host.make<RecomputePolicy>(
      recipe.recompute.use, recipe.recompute.options, {.layers = s.architecture->layers()}
  );
  s.optimizer = host.make<Optimizer>(recipe.optimizer.use, recipe.optimizer.options);
  s.lr_schedule = host.make<LrSchedule>(
      recipe.lr_schedule.use,
      recipe.lr_schedule.options,
      {.lr = recipe.optimizer.lr,
       .train_iters = recipe.iterations(),
       .global_batch = recipe.batch.global}
  );
  s.model = std::make_unique<Model>(
      *s.architecture,
      Builder::Args{
          .mesh = &s.mesh,
          .rules = &s.rules,
          .device = s.device->device(),
          .dtype = s.dtype,
          .seed = seed,
          .seq = recipe.model.seq_length,
          .microbatch = recipe.batch.micro * shape.dp,
          .vocab_multiple = kVocabMultiple,
          .initialise = options.initialise},
      s.recompute.get()
  );
  return session;
}

BatchLayout Session::layout() const {
  const int64_t ranks = mesh.size(MeshAxis::dp);
  return {
      .seq = recipe.model.seq_length,
      .micro = recipe.batch.micro,
      .microbatches = recipe.batch.global / (recipe.batch.micro * ranks),
      .data_ranks = ranks,
      .data_rank = mesh.coordinate(MeshAxis::dp),
      .tokens = rules.token_runs(recipe.model.seq_length, mesh)};
}

double Session::flops_per_token() const {
  const auto& forward = model->flops();
  const double attended = static_cast<double>(recipe.model.seq_length) / 2; // causal mean
  return 3 * (forward.products + forward.attention_per_token * attended);
}

int64_t Session::padded_vocab() const {
  const int64_t multiple = kVocabMultiple * mesh.size(MeshAxis::tp);
  return (architecture->vocab() + multiple - 1) / multiple * multiple;
}

} // namespace mh
