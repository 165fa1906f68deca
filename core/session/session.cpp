#include "core/session/session.hpp"

#include "core/kernels/gemm_choice.hpp"
#include "core/mesh/agree.hpp"
#include "core/mesh/layout.hpp"
#include "core/mesh/rank_reports.hpp"
#include "core/model/outline.hpp"
#include "core/model/plugin_call.hpp"
#include "core/session/named_tokenizer.hpp"
#include "core/step/sample_arrays.hpp"
#include "megahost/error.hpp"
#include "megahost/strategy.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace mh {
namespace {

/// The dtype of weights and activations.
at::ScalarType dtype_of(const std::string& precision) {
  return precision == "fp32" ? at::kFloat : precision == "fp16" ? at::kHalf : at::kBFloat16;
}

std::optional<Fp8Spec> fp8_of(const Recipe& recipe) {
  if (recipe.precision != "fp8") {
    return std::nullopt;
  }
  return Fp8Spec{
      .delayed = recipe.fp8.recipe == "delayed",
      .history = recipe.fp8.history,
      .most_recent = recipe.fp8.amax == "most_recent",
      .margin = recipe.fp8.margin};
}

/// Samples of train, validation and test that a run takes from first to last.
///
/// Source:  Megatron-LM, training.py, get_train_valid_test_num_samples
std::array<int64_t, 3> wanted_samples(const Recipe& recipe) {
  const int64_t steps = recipe.iterations(), interval = recipe.train.eval_interval;
  const int64_t of_train = recipe.train.samples.value_or(recipe.batch.global * steps);
  const int64_t of_evaluation = recipe.train.eval_iters * recipe.batch.global;
  return {of_train, (interval > 0 ? steps / interval + 1 : 1) * of_evaluation, of_evaluation};
}

/// The keys of the section `parallel` that a strategy declares.
Table strategy_options(const Recipe& recipe, const Registry::Entry& strategy) {
  Table options;
  for (const auto& field : strategy.schema.fields) {
    if (const Value* value = recipe.tree.find_path("parallel." + field.name)) {
      options.set(field.name, *value);
    }
  }
  return options;
}

/// Throws mh::Error if ranks lie along a mesh axis that no rule uses: each would do the same.
void check_axes_used(const Recipe& recipe, const Rules& rules, const MeshShape& shape) {
  for (const MeshAxis axis : kAllMeshAxes) {
    const bool used = std::ranges::any_of(
        std::array{&rules.features, &rules.tokens, &rules.between},
        [axis](const auto* tier) {
          return std::ranges::any_of(*tier, [axis](const Rule& rule) { return rule.mesh == axis; });
        }
    );
    const auto key = recipe.parallel.degrees.find(axis); // none: of a recipe made by hand
    if (!used && axis != MeshAxis::edp && degree(shape, axis) > 1 &&
        key != recipe.parallel.degrees.end()) {
      throw Error(
          "parallel." + key->second + " lays " + std::to_string(degree(shape, axis)) +
              " ranks along the mesh axis " + std::string(to_string(axis)) +
              ", which no strategy in force uses",
          "name a strategy that does in parallel.strategies, or set parallel." + key->second +
              " = 1"
      );
    }
  }
}

Rules make_rules(const Recipe& recipe, Host& host, const MeshShape& shape) {
  Rules rules;
  for (const auto& name : recipe.parallel.strategies) {
    const auto& entry = host.require(Kind::strategy, name);
    const auto strategy =
        host.make<Strategy>(PluginSection{name, strategy_options(recipe, entry)}, {.shape = shape});
    in_plugin(*strategy, "rules", [&] { strategy->rules(rules); });
  }
  check_axes_used(recipe, rules, shape);
  return rules;
}

/// Checks that ranks can share the tokens of each sequence that the model reads in addition to its
/// main one, whose length strategies look at themselves.
void check_sequences(const Architecture& architecture, const Rules& rules, const MeshShape& shape) {
  for (const auto& [name, length] : architecture.sequences()) {
    int64_t left = length;
    for (const auto* tier : {&rules.tokens, &rules.between}) {
      for (const Rule& rule : *tier) {
        const int64_t ranks = rule.logical == axis::seq ? degree(shape, rule.mesh) : 1;
        const int64_t pieces = rule.sharding == Sharding::zigzag && ranks > 1 ? 2 * ranks : ranks;
        if (left % pieces != 0) {
          throw Error(
              "the model's sequence `" + name + "` of " + std::to_string(length) +
                  " tokens cannot be cut into " + std::to_string(length / left * pieces) +
                  " equal pieces, as " + std::to_string(ranks) + " ranks along " +
                  std::string(to_string(rule.mesh)) + " need it",
              "choose its length as a multiple of " + std::to_string(length / left * pieces)
          );
        }
        left /= ranks;
      }
    }
  }
}

/// Whether weights are made in their shards: no code asks for them before.
bool defers(const Session& s, const SessionOptions& options) {
  return options.trains && s.recipe.parallel.zero >= 3 && s.mesh.size(MeshAxis::dp) > 1 &&
         (options.initialise || options.planned_for);
}

/// The model's arguments, of this rank.
Builder::Args builder_args(const Session& s, const SessionOptions& options) {
  return {
      .mesh = &s.mesh,
      .rules = &s.rules,
      .device = s.place,
      .dtype = s.dtype,
      .seed = static_cast<uint64_t>(s.recipe.train.seed),
      .seq = s.recipe.model.seq_length,
      .microbatch = s.recipe.batch.micro * s.mesh.size(MeshAxis::dp),
      .vocab_multiple = kVocabMultiple,
      .initialise = options.initialise || options.partial ||
                    (options.trains && !s.architecture->upcycled().empty()),
      .fp8 = options.trains && !options.dtype ? fp8_of(s.recipe) : std::nullopt,
      .chunks = s.pipeline ? chunks_of(s.stages, s.pipeline->args()) : std::vector<ModelChunk>()};
}

void check_batch(const Recipe& recipe, const MeshShape& shape) {
  const auto& batch = recipe.batch;
  for (const auto& [key, samples] :
       {std::pair("global", std::optional(batch.global)),
        std::pair("rampup_start", batch.rampup_start),
        std::pair("rampup_increment", batch.rampup_increment)}) {
    if (samples.value_or(0) % (batch.micro * shape.dp) != 0) {
      throw Error(
          std::string("batch.") + key + " " + std::to_string(*samples) +
              " is not divisible by batch.micro " + std::to_string(batch.micro) +
              " times data parallel " + std::to_string(shape.dp),
          std::string("choose batch.") + key + " as a multiple of " +
              std::to_string(batch.micro * shape.dp)
      );
    }
  }
}

class GivenKeep : public RecomputePolicy {
public:
  explicit GivenKeep(std::vector<Keep> keep)
      : keep_(std::move(keep)) {}

  [[nodiscard]] Keep keep(int64_t layer) const override {
    return keep_.at(static_cast<size_t>(layer));
  }

private:
  std::vector<Keep> keep_;
};

/// The function `Session::peak_memory`.
std::function<int64_t(const std::vector<Keep>&)>
peak_memory(const Session& session, const StepPeak& step_peak) {
  if (!step_peak || session.corpus == nullptr) {
    return {};
  }
  return [&session, step_peak](const std::vector<Keep>& keep) {
    return step_peak({.stage = session.mesh.coordinate(MeshAxis::pp), .keep = keep});
  };
}

/// No two ranks compute on one device that they could have for themselves.
void check_sharing(const Mesh& mesh, const Device& device) {
  const auto identities = together(ranks_of(mesh.all()), [&] { return device.identity(); });
  std::map<std::string, size_t> first;
  for (size_t rank = 0; rank < identities.size(); ++rank) {
    const auto [other, alone] = first.try_emplace(identities[rank], rank);
    if (!alone && !identities[rank].empty()) {
      throw Error(
          "ranks " + std::to_string(other->second) + " and " + std::to_string(rank) +
              " would compute on one device, " + identities[rank],
          "give each rank a device of its own: start as many processes on a machine as it has, or "
          "show each process another one (CUDA_VISIBLE_DEVICES)"
      );
    }
  }
}

/// Parts of another name would not be recomputed, silently.
void require_known_parts(const Session& session, const Recipe& recipe, Host& host) {
  const auto& own = host.require(Kind::architecture, recipe.model.use).recompute_parts;
  const auto has = [](const auto& parts, const std::string& part) {
    return std::find(parts.begin(), parts.end(), part) != parts.end();
  };
  for (const Keep& keep : kept_by(*session.recompute, session.layers())) {
    for (const std::string& part : keep.redo) {
      if (!has(kRecomputeParts, part) && !has(own, part)) {
        throw Error(
            "the recompute policy " + recipe.recompute.use + " names the part \"" + part +
                "\", which no block of the model has",
            "megahost plugins check tests its file"
        );
      }
    }
  }
}

} // namespace

std::unique_ptr<Optimizer> make_optimizer(const Recipe::Optimizer& recipe, Host& host) {
  const auto dtype = recipe.state_dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  auto optimizer = host.make<Optimizer>(
      recipe, {.state_dtype = dtype, .stochastic_rounding = recipe.stochastic_rounding}
  );
  if (recipe.stochastic_rounding && !optimizer->rounds_stochastically()) {
    throw Error(
        "optimizer.stochastic_rounding is true, but optimizer \"" + recipe.use +
            "\" does not round stochastically",
        "set optimizer.stochastic_rounding to false, or use an optimizer whose "
        "rounds_stochastically() says that it does"
    );
  }
  for (const auto& state : in_plugin(*optimizer, "state", [&] { return optimizer->state(); })) {
    const bool large = state.shape.empty(); // others may stay in float32
    if (dtype != at::kFloat && large && state.dtype != dtype) {
      throw Error(
          "optimizer \"" + recipe.use + "\" keeps its state `" + state.name +
              "` in another format than optimizer.state_dtype \"bf16\"",
          "set optimizer.state_dtype to \"fp32\", or use an optimizer that offers bf16 state"
      );
    }
  }
  return optimizer;
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
  s.dtype = options.dtype.value_or(dtype_of(recipe.precision));
  if (options.planned_for) {
    s.place = at::kMeta;
    s.target = *options.planned_for;
  } else {
    s.device = options.device ? options.device()
                              : host.make<Device>(recipe.device, {.local_rank = world.local_rank});
    s.place = s.device->device();
    s.target = s.place.type();
  }
  s.tokenizer = std::make_unique<NamedTokenizer>(host.make<Tokenizer>(recipe.tokenizer));
  s.architecture = host.make<Architecture>(
      recipe.model, {.vocab = s.tokenizer->vocab(), .seq_length = recipe.model.seq_length}
  );
  check_sequences(*s.architecture, s.rules, shape);
  if (shape.pp > 1) {
    s.stages = stage_layout(recipe, block_costs(*s.architecture, recipe.model.seq_length));
    const int64_t samples_at_once = recipe.batch.micro * shape.dp;
    s.pipeline = make_pipeline(recipe, host, recipe.batch.global / samples_at_once);
    for (const int64_t samples : batch_sizes(recipe.batch)) {
      (void)s.pipeline->training(samples / samples_at_once);
    }
  }
  if (options.mesh != nullptr) { // nothing of the layout is refused from here on
    s.mesh = *options.mesh;
  } else if (options.processes != nullptr) {
    const auto make_backend = options.processes->make_backend(s.device.get());
    s.mesh = Mesh(shape, world.rank, make_backend, recipe.parallel.order);
    check_sharing(s.mesh, *s.device);
    report_phase(RankPhase::meshed);
    if (options.warn) {
      s.watch = options.processes->watch(s.mesh.log(), recipe.comm.hang_after, options.warn);
    }
  }
  if (options.corpus) {
    const Corpus::Args args{
        .tokenizer = s.tokenizer.get(),
        .seq_length = recipe.model.seq_length,
        .vocab = s.architecture->vocab(),
        .split = recipe.data.shares(),
        .seed = static_cast<uint64_t>(recipe.train.seed),
        .sequences = s.architecture->sequences(),
        .wanted = wanted_samples(recipe),
        .micro = recipe.batch.micro,
        .data_ranks = shape.dp,
        .whole_splits = options.whole_splits};
    const auto& data = recipe.data;
    s.arrays = declared_arrays(host.require(Kind::corpus, data.use), data.options, args);
    if (!options.planned_for) {
      s.corpus = host.make<Corpus>(data, args);
    }
  }
  s.optimizer = make_optimizer(recipe.optimizer, host);
  s.schedule = std::make_unique<UpdateSchedule>(schedule_terms(recipe), host);
  const Builder::Args build = builder_args(s, options);
  s.initialised = build.initialise;
  s.peak_memory = peak_memory(s, options.step_peak);
  if (options.keep) {
    s.recompute = std::make_unique<GivenKeep>(*options.keep);
  } else {
    RecomputePolicy::Args args{.layers = s.layers()};
    if (s.peak_memory) {
      args.peak_memory = [&s](const std::vector<Keep>& keep) {
        s.kept_by_memory = true;
        return s.peak_memory(keep);
      };
    }
    s.recompute = host.make<RecomputePolicy>(recipe.recompute, args);
    require_known_parts(s, recipe, host);
  }
  const auto make_model = [&] {
    return std::make_unique<Model>(*s.architecture, build, s.recompute.get());
  };
  if (defers(s, options)) {
    s.deferred = std::make_unique<DeferredValues>();
    s.model = s.deferred->during(make_model);
  } else {
    s.model = make_model();
  }
  return session;
}

int64_t Session::layers() const {
  return pipeline == nullptr
             ? layer_count(*architecture)
             : stage_layers(stages, pipeline->args(), mesh.coordinate(MeshAxis::pp));
}

BatchLayout Session::layout(int64_t consumed) const {
  const int64_t ranks = mesh.size(MeshAxis::dp);
  return {
      .seq = recipe.model.seq_length,
      .micro = recipe.batch.micro,
      .microbatches = recipe.batch.at(consumed) / (recipe.batch.micro * ranks),
      .data_ranks = ranks,
      .data_rank = mesh.coordinate(MeshAxis::dp),
      .tokens = [this](int64_t length) { return rules.token_runs(length, mesh); },
      .sequences = architecture->sequences(),
      .arrays = arrays,
      .shifted = architecture->shifted_arrays(),
      .vocab = architecture->vocab()};
}

void Session::allocate_gradients() {
  const auto& parallel = recipe.parallel;
  const GradientOptions options{
      .zero = parallel.zero,
      .unit = optimizer->unit(),
      .bucket = parallel.bucket_size,
      .overlap = parallel.overlap,
      .reduce = parallel.reduce_dtype == "bf16" ? at::kBFloat16 : at::kFloat,
      .deferred = deferred.get()};
  gradients = std::make_unique<Gradients>(model->parameters(), mesh, options);
}

std::string Session::share_gemm(const std::function<std::string()>& choose) const {
  if (dtype != at::kFloat || !place.is_cpu()) {
    return "";
  }
  const std::string libtorch = on_first(ranks_of(mesh.all()), choose);
  ops::use_gemm(ops::gemm_choice_of(libtorch));
  return libtorch;
}

double Session::flops_per_sample() const {
  return 3 * model->flops().total();
}

int64_t Session::padded_vocab() const {
  const int64_t multiple = kVocabMultiple * mesh.size(MeshAxis::tp);
  return (architecture->vocab() + multiple - 1) / multiple * multiple;
}

} // namespace mh
