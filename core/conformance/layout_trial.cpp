#include "core/conformance/layout_trial.hpp"

#include "core/mesh/threads.hpp"
#include "core/step/parameter_groups.hpp"
#include "core/step/step.hpp"
#include "core/step/weights.hpp"
#include "megahost/error.hpp"
#include "megahost/shuffle.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

namespace mh {

namespace {

constexpr double kMissing = -std::numeric_limits<double>::infinity();

/// A large eps keeps AdamW from making full steps of gradients that are only rounding.
constexpr double kLeastEps = 1e-3;

/// The loss scale of float16: gradients of a small model's mean loss, times this, are far from both
/// ends of its range.
constexpr double kLossScale = 0x1p12;

struct TrialOptimizer {
  std::string name;
  Table options;
  Optimizer::Args args{};
  double lr = 0, clip = 0;
  WeightOptions weights{}; // but for the mesh
};

TrialOptimizer optimizer_of(const Recipe& recipe, at::ScalarType dtype) {
  const auto& optimizer = recipe.optimizer;
  TrialOptimizer own{.name = optimizer.use, .options = optimizer.options.as_table()};
  const Value* eps = own.options.find("eps");
  if (eps != nullptr && eps->is_number() && eps->as_number() < kLeastEps) {
    own.options.set("eps", kLeastEps);
  }
  const bool exact = dtype == at::kDouble;
  own.args.stochastic_rounding = optimizer.stochastic_rounding && !exact;
  own.args.state_dtype = !exact && optimizer.state_dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  own.lr = optimizer.lr;
  own.clip = optimizer.clip_grad;
  own.weights = {
      .weight_decay = optimizer.weight_decay,
      .decay_vectors = optimizer.decay_vectors,
      .masters = optimizer.master_weights,
      .groups = optimizer.groups};
  return own;
}

std::vector<TrialOptimizer> trial_optimizers(const Recipe& recipe, const TrialOptions& options) {
  if (options.recipes_optimizer) {
    return {optimizer_of(recipe, options.dtype)};
  }
  const WeightOptions weights{.weight_decay = 0.1};
  return {
      {"sgd", {}, {}, 0.1, options.clip, weights},
      {"adamw", {{"eps", kLeastEps}}, {}, 1e-3, options.clip, weights}};
}

std::mutex& results_mutex() {
  static std::mutex mutex; // guards all results: they are written once a trial
  return mutex;
}

/// Writes the slice that this rank holds into the whole tensor.
void keep(
    TrialResult& result, const std::string& kind, const Piece& piece, const at::Tensor& from
) {
  const at::NoGradGuard no_grad;
  const std::scoped_lock lock(results_mutex());
  auto& whole = result.tensors[kind][piece.name];
  if (!whole.defined()) {
    const auto type = from.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    whole = at::full(piece.global_shape, kMissing, type);
  }
  at::Tensor slice = whole;
  for (size_t d = 0; d < piece.shape.size(); ++d) {
    slice = slice.narrow(static_cast<int64_t>(d), piece.offset[d], piece.shape[d]);
  }
  slice.copy_(from);
}

/// A thread for each rank: what a trial's small tensors gain by more is less than the waits cost.
class OneThread {
public:
  OneThread()
      : threads_(at::get_num_threads()) {
    at::set_num_threads(1);
  }

  ~OneThread() { at::set_num_threads(threads_); }

  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

private:
  int threads_;
};

class RankTrial {
public:
  RankTrial(Session& session, const TrialOptions& options, TrialResult& result)
      : session_(session)
      , options_(options)
      , result_(result) {
    session_.allocate_gradients();
    for (const auto& owned : session_.gradients->owned()) {
      first_values_.push_back(owned.value.clone());
    }
  }

  /// Steps from the first values on; of the very first one the gradients are kept, too: what else
  /// a model keeps, such as a router's bias, moves on.
  void run(const TrialOptimizer& spec, Host& host) {
    const at::NoGradGuard no_grad;
    auto& gradients = *session_.gradients;
    gradients.wait_for_all();
    auto value = first_values_.begin();
    for (const auto& owned : gradients.owned()) {
      owned.value.copy_(*value++);
    }
    gradients.share_parameters();
    const auto optimizer = host.make<Optimizer>(spec.name, spec.options, spec.args);
    WeightOptions of_mesh = spec.weights;
    of_mesh.mesh = &session_.mesh;
    Weights weights(gradients, *optimizer, of_mesh);
    Passes passes = session_.passes();
    for (int64_t step = 0; step < std::max<int64_t>(1, options_.steps); ++step) {
      passes.checking = options_.checking && !kept_; // later steps do the same with other values
      const at::AutoGradMode grad(true);
      (void)train_step(
          passes,
          weights,
          *optimizer,
          load(step),
          {.seed = static_cast<uint64_t>(step) + 1,
           .clip = spec.clip,
           .update = {.step = step + 1, .lr = spec.lr},
           .loss_scale = loss_scale(),
           .accept =
               [&](const StepResult& found) {
                 if (!std::exchange(kept_, true)) {
                   keep_first(found);
                 }
                 return options_.steps > 0;
               }}
      );
    }
    if (options_.steps > 0) {
      const at::NoGradGuard none;
      gradients.wait_for_all();
      for (const auto& parameter : parameters().all()) {
        for (const auto& piece : parameter.pieces) {
          const auto value = parameter.view(parameter.value, piece);
          keep(result_, "value after " + spec.name, piece, value);
        }
      }
    }
  }

private:
  ParameterStore& parameters() { return session_.model->parameters(); }

  [[nodiscard]] double loss_scale() const { return options_.dtype == at::kHalf ? kLossScale : 1; }

  void keep_first(const StepResult& found) {
    for (const auto& owned : session_.gradients->owned()) {
      keep(result_, "gradient", owned.piece, owned.gradient / loss_scale());
    }
    const std::scoped_lock lock(results_mutex());
    result_.dtype = options_.dtype;
    keep_number("gradient norm", found.gradient_norm);
    for (const auto& loss : found.losses) {
      if (loss.main) {
        keep_number(loss.name, loss.value);
        result_.items = loss.count;
      }
    }
  }

  /// All ranks have it; where one has another it is no number.
  void keep_number(const std::string& name, double value) {
    double& kept = result_.numbers.emplace(name, value).first->second;
    if (!(std::abs(kept - value) <= 1e-6 * std::abs(value))) {
      kept = std::numeric_limits<double>::quiet_NaN();
    }
  }

  [[nodiscard]] std::vector<Batch> load(int64_t step) const {
    const auto layout = session_.layout();
    return load_batches(*session_.corpus, Split::train, step * layout.global(), layout);
  }

  Session& session_;
  TrialOptions options_;
  TrialResult& result_;
  std::vector<at::Tensor> first_values_;
  bool kept_ = false; // the first gradients
};

/// A trial's speed does not matter: warnings of kernels would stand in its reader's table.
struct NoWarnings : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

} // namespace

TrialCorpus::TrialCorpus(const Architecture& architecture, int64_t seq_length)
    : vocab_(architecture.vocab())
    , seq_length_(seq_length)
    , sequences_(architecture.sequences())
    , arrays_(architecture.arrays(seq_length)) {
  const auto add = [&](const std::string& name, int64_t length, const std::string& sequence) {
    if (std::ranges::find(arrays_, name, &ArraySpec::name) == arrays_.end()) {
      arrays_.push_back({name, ArraySpec::Type::int64, axis::seq, length, sequence});
    }
  };
  for (const char* name : {"positions", "segments"}) {
    add(name, seq_length, "");
  }
  for (const auto& [sequence, length] : sequences_) {
    for (const char* name : {"_tokens", "_positions", "_segments"}) {
      add(sequence + name, length, sequence);
    }
  }
}

Sample TrialCorpus::sample(Split, int64_t index) const {
  const Sample own = tokens_of(seq_length_, index, 0);
  Sample sample;
  for (const ArraySpec& spec : arrays_) { // one that we know of, or ids, or ones
    const auto known = spec.length == seq_length_ ? own.find(spec.name) : own.end();
    Array& array = sample[spec.name];
    if (spec.type == ArraySpec::Type::float32) {
      array = known != own.end() ? known->second
                                 : std::vector<float>(static_cast<size_t>(spec.length), 1.0F);
      continue;
    }
    array = known != own.end() ? known->second : tokens_of(spec.length, index, 0).at("tokens");
    for (int64_t& id : std::get<std::vector<int64_t>>(array)) {
      id = spec.below > 0 ? id % spec.below : id;
    }
  }
  uint64_t number = 0;
  for (const auto& [sequence, length] : sequences_) {
    Sample other = tokens_of(length, index, ++number << 32);
    for (const char* name : {"tokens", "positions", "segments"}) {
      sample[sequence + "_" + name] = std::move(other.at(name));
    }
  }
  return sample;
}

Sample TrialCorpus::tokens_of(int64_t tokens_per_sample, int64_t index, uint64_t kind) const {
  const auto length = static_cast<size_t>(tokens_per_sample);
  const auto at = static_cast<size_t>(index);
  const size_t second = length / 3 + at % 5;           // where the second document begins
  const size_t padding = length - length / 6 - at % 3; // and the padding
  const bool masked = at % 4 == 3;                     // all of it
  std::vector<int64_t> tokens(length), labels(length), positions(length), segments(length);
  std::vector<float> mask(length);
  const auto token = [&](size_t i) {
    const uint64_t word = mix(kind + at * 1000003 + i + 1);
    return static_cast<int64_t>(word % static_cast<uint64_t>(vocab_));
  };
  for (size_t i = 0; i < length; ++i) {
    const bool first = i < second, tail = i >= padding;
    const size_t begin = first ? 0 : tail ? padding : second;
    const bool ends = i + 1 == second || i + 1 == padding;
    tokens[i] = token(i);
    labels[i] = token(i + 1);
    positions[i] = static_cast<int64_t>(i - begin);
    segments[i] = first ? 0 : tail ? 2 : 1;
    mask[i] = masked || tail || ends ? 0.0F : 1.0F;
  }
  return {
      {"tokens", tokens},
      {"labels", labels},
      {"positions", positions},
      {"segments", segments},
      {"loss_mask", mask}};
}

Sample FoldedCorpus::sample(Split split, int64_t index) const {
  Sample sample = corpus_.sample(split, index);
  for (auto& [name, array] : sample) {
    if (auto* ids = std::get_if<std::vector<int64_t>>(&array)) {
      for (int64_t& id : *ids) {
        id = id >= vocab_ ? id % vocab_ : id;
      }
    }
  }
  return sample;
}

void run_trial(
    const Recipe& recipe,
    Host& host,
    const SessionOptions& where,
    const TrialOptions& options,
    TrialResult& result
) {
  NoWarnings none;
  const c10::WarningUtils::WarningHandlerGuard guard(&none); // for this thread alone
  std::unique_ptr<Session> session;
  {
    const std::scoped_lock lock(results_mutex()); // the host opens plugins, one thread at a time
    SessionOptions own = where;
    own.corpus = false;
    Recipe tried = recipe;
    if (options.dtype == at::kFloat8_e4m3fn) {
      tried.precision = "fp8";
    } else {
      own.dtype = options.dtype;
    }
    session = make_session(tried, host, own);
  }
  const int64_t vocab = session->architecture->vocab();
  if (options.corpus != nullptr) {
    session->arrays = options.arrays;
    session->corpus = std::make_unique<FoldedCorpus>(*options.corpus, vocab);
  } else {
    auto corpus = std::make_unique<TrialCorpus>(*session->architecture, recipe.model.seq_length);
    session->arrays = corpus->arrays();
    session->corpus = std::move(corpus);
  }
  const auto optimizers = trial_optimizers(recipe, options);
  mark_frozen(session->model->parameters(), optimizers.front().weights.groups);
  RankTrial trial(*session, options, result);
  for (const auto& optimizer : optimizers) {
    trial.run(optimizer, host);
    if (options.steps == 0) {
      break; // the gradients do not depend on it
    }
  }
}

TrialResult trial_on_threads(
    const Recipe& recipe, Host& host, const TrialOptions& options, const WrapBackend& wrap
) {
  for (const auto& optimizer : trial_optimizers(recipe, options)) {
    host.require(Kind::optimizer, optimizer.name); // opened here, before any thread
  }
  TrialResult result;
  const auto shape = mesh_shape(recipe, recipe.parallel.ranks());
  const OneThread one;
  run_ranks(
      shape,
      [&](const Mesh& mesh) { run_trial(recipe, host, {.mesh = &mesh}, options, result); },
      {.order = recipe.parallel.order, .wrap = wrap}
  );
  return result;
}

namespace {

double norm_of(const std::map<std::string, at::Tensor>& tensors) {
  double sum = 0;
  for (const auto& [name, tensor] : tensors) {
    const double norm = tensor.norm().item().toDouble();
    sum += norm * norm;
  }
  return std::sqrt(sum);
}

/// Tensors of fewer elements can be close to another format's by chance.
constexpr int64_t kFewElements = 16;

/// Keeps the difference that lies furthest beyond what is allowed.
class Worst {
public:
  /// `items`: losses of a step, whose roundings add up to those of all that is compared
  Worst(double bound, double items)
      : bound_(bound)
      , times_(2 + 4 / std::sqrt(std::max(1.0, items))) {}

  void see(double difference, double rounding, const std::string& where) {
    const double infinite = std::numeric_limits<double>::infinity();
    difference = std::isfinite(difference) ? difference : infinite;
    const double allowed = std::max(bound_, std::isfinite(rounding) ? times_ * rounding : 0);
    if (found_.where.empty() || difference / allowed > found_.worst / found_.allowed) {
      found_ = {difference, allowed, where};
    }
  }

  [[nodiscard]] const TrialDifference& found() const { return found_; }

private:
  double bound_, times_;
  TrialDifference found_;
};

double relative(double a, double b) {
  return std::abs(a - b) / std::max(std::abs(a), 1e-30);
}

double number_of(const TrialResult& result, const std::string& name) {
  const auto found = result.numbers.find(name);
  return found == result.numbers.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

double unit_roundoff(at::ScalarType dtype) {
  return dtype == at::kFloat8_e4m3fn ? 0x1p-4
         : dtype == at::kBFloat16    ? 0x1p-8
         : dtype == at::kHalf        ? 0x1p-11
         : dtype == at::kFloat       ? 0x1p-24
                                     : 0x1p-53;
}

/// The rounding error of a mean if each of its items is rounded once.
double rounding_of_items(const TrialResult& result) {
  return unit_roundoff(result.dtype) / std::sqrt(std::max(1.0, result.items));
}

/// How much of the distance between two formats is rounding in the first.
double share_of(at::ScalarType one, at::ScalarType rounding) {
  return std::min(1.0, unit_roundoff(one) / unit_roundoff(rounding));
}

/// "layers.#.mlp.router.weight": layers round alike.
std::string in_any_layer(const std::string& name) {
  std::string any;
  for (const char letter : name) {
    const bool digit = letter >= '0' && letter <= '9';
    if (!digit || !any.ends_with('#')) {
      any += digit ? '#' : letter;
    }
  }
  return any;
}

/// The norm of a difference; infinite where there is nothing to compare.
double distance(
    const at::Tensor& one, const std::map<std::string, at::Tensor>* others, const std::string& name
) {
  if (others == nullptr || !others->contains(name) || others->at(name).sizes() != one.sizes()) {
    return std::numeric_limits<double>::infinity();
  }
  return (others->at(name).to(at::kDouble) - one.to(at::kDouble)).norm().item().toDouble();
}

const std::map<std::string, at::Tensor>*
kind_of(const TrialResult* result, const std::string& kind) {
  const auto found =
      result == nullptr ? decltype(result->tensors.end()){} : result->tensors.find(kind);
  return result == nullptr || found == result->tensors.end() ? nullptr : &found->second;
}

} // namespace

TrialDifference compare_trials(
    const TrialResult& one, const TrialResult& other, double bound, const TrialResult* rounding
) {
  Worst worst(bound, one.items);
  const double each = rounding_of_items(one);
  const double share = rounding == nullptr ? 0 : share_of(one.dtype, rounding->dtype);
  for (const auto& [name, number] : one.numbers) {
    const double own =
        rounding == nullptr ? 0 : share * relative(number, number_of(*rounding, name));
    worst.see(relative(number, number_of(other, name)), std::max(each, own), name);
  }
  for (const auto& [kind, tensors] : one.tensors) {
    const double least = 1e-6 * norm_of(tensors);
    const auto* others = kind_of(&other, kind);
    const auto* rounded = kind_of(rounding, kind);
    const auto size_of = [&](const at::Tensor& tensor) {
      return std::max({tensor.norm().item().toDouble(), least, 1e-30});
    };
    std::map<std::string, double> most_of; // largest allowance of a tensor in any layer
    double most_of_all = 0;                // and of any tensor whose elements say how it rounds
    for (const auto& [name, tensor] : tensors) {
      const double measured =
          rounding == nullptr ? 0 : share * distance(tensor, rounded, name) / size_of(tensor);
      const double own = std::isfinite(measured) ? measured : 0;
      auto& most = most_of[in_any_layer(name)];
      most = std::max(most, own);
      const bool tells = tensor.numel() >= kFewElements && tensor.norm().item().toDouble() > least;
      most_of_all = tells ? std::max(most_of_all, own) : most_of_all;
    }
    for (const auto& [name, tensor] : tensors) {
      // A value below the floor is rounding alone (a bias of keys that does not change a softmax).
      const bool floats = tensor.scalar_type() != at::kDouble;
      const double tiny = tensor.norm().item().toDouble() > least ? 0 : floats ? 0.5 : 5e-9;
      const double few = tensor.numel() < kFewElements ? most_of_all : 0;
      worst.see(
          distance(tensor, others, name) / size_of(tensor),
          std::max({tiny, few, most_of.at(in_any_layer(name))}),
          kind + " of " + name
      );
    }
    for (const auto& [name, tensor] : others == nullptr ? decltype(tensors){} : *others) {
      if (!tensors.contains(name)) {
        worst.see(
            std::numeric_limits<double>::infinity(),
            0,
            kind + " of " + name + ", unknown to one rank"
        );
      }
    }
  }
  return worst.found();
}

} // namespace mh
