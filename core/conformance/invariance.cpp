// Tests of what must not change a model: a layout, values made later, a cache of keys and values,
// another document, recompute.

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/conformance/instance.hpp"
#include "core/conformance/model.hpp"
#include "core/conformance/subject.hpp"
#include "core/conformance/tests.hpp"
#include "core/model/deferred_values.hpp"
#include "core/plan/shapes_missing.hpp"
#include "core/session/built_in.hpp"
#include "core/session/generate.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/attention.hpp"
#include "megahost/recompute.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

namespace mh::check {

/// Under ZeRO-3 values are made after the model, from what the layers declare.
void initial_values(const Case& c) {
  const auto architecture = make<Architecture>(c);
  SmallModel model(*architecture, {});
  DeferredValues deferred;
  SmallModel later = deferred.during([&] { return SmallModel(*architecture, {}); });
  deferred.make_rest(later.model->parameters());
  auto others = later.model->parameters().all().begin();
  for (const Parameter& parameter : model.model->parameters().all()) {
    if (bits({parameter.value}) != bits({(others++)->value})) {
      fail(
          "the first values of " + parameter.pieces.front().name +
              " are not those that its Init gives: under ZeRO-3 they would be lost",
          "write no values in a constructor: give ParamSpec an Init::uniform, Init::log_uniform or "
          "Init::of_index"
      );
    }
  }
}

namespace {

constexpr const char* kLayouts = "tensor=2,sequence=true; context=2; pipeline=2; data=2,zero=3";

/// Sizes that two ranks split, small enough for a test; a model has those that its schema has.
constexpr std::pair<const char*, int64_t> kSizes[] = {
    {"layers", 2},
    {"hidden", 48},
    {"heads", 4},
    {"kv_heads", 2},
    {"head_dim", 12},
    {"ffn_hidden", 120},
    {"vocab", 203}};

/// The command line of `megahost check` for this case.
Invocation check_of(const Case& c) {
  std::vector<std::string> sets{"model.seq_length=24", "batch.global=4"};
  for (const auto& [field, size] : kSizes) {
    if (c.entry->schema.find(field) != nullptr) {
      sets.push_back("model." + std::string(field) + "=" + std::to_string(size));
    }
  }
  for (const auto& entry : given_options(c)) {
    sets.push_back("model." + entry.key + "=" + to_text(entry.value));
  }
  Invocation invocation;
  invocation.command = "check";
  invocation.options = {{"--model", {c.entry->full_name()}}, {"--set", sets}};
  return invocation;
}

TrialResult trial(const Recipe& recipe, Host& host) {
  return trial_on_threads(recipe, host, {.dtype = at::kDouble, .steps = 1});
}

/// The layout's difference from one rank; nothing where the plugin refuses the layout.
std::optional<TrialDifference>
difference(const Subject& subject, Host& host, const Layout& layout, const TrialResult& one) {
  try {
    const Recipe recipe = subject.under(layout).recipe;
    return compare_trials(one, trial(recipe, host), kPrecisions[0].bound, nullptr);
  } catch (const Error& error) {
    if (error.exit_code() == exit_code::recipe) {
      return std::nullopt; // a sentence for whoever asks for that layout
    }
    fail("under " + layout.text + ": " + std::string(error.what()), error.hint());
  }
}

/// Compares in float64, where rounding is no excuse: loss, gradients and a step of SGD and of
/// AdamW.
void layouts_match_of(const Case& c, Host& host) {
  const Invocation invocation = check_of(c);
  const Subject subject(invocation, host);
  std::optional<TrialResult> one;
  try {
    one = trial(subject.under({}).recipe, host);
  } catch (const Error& error) {
    if (error.exit_code() != exit_code::recipe) {
      throw;
    }
    const std::string what = error.what();
    not_applicable(
        "it refuses the sizes of this test (" + join(invocation.all("--set")) +
        "): " + what.substr(0, what.find('\n')) + "; --set model.FIELD=VALUE gives others"
    );
  }
  std::string sets;
  for (const auto& entry : given_options(c)) {
    sets += " --set " + shell_word("model." + entry.key + "=" + to_text(entry.value));
  }
  for (const Layout& layout : parse_layouts(kLayouts)) {
    const auto found = difference(subject, host, layout, *one);
    if (found && !found->within()) {
      fail(
          formatted(
              "under %s it differs from one rank by %.1e at the %s",
              layout.text.c_str(),
              found->worst,
              found->where.c_str()
          ),
          "megahost check --plugin " + c.file.string() + " --model " + c.entry->name +
              " --layouts '" + layout.text + "'" + sets +
              " shows it; a layer that looks at other tokens, or sums over an axis, must say so "
              "(core_attention, convert in megahost/parallel.hpp) or refuse the layout"
      );
    }
  }
}

} // namespace

/// A host opens the plugin, as in a run.
void layouts_match(const Case& c) {
  Host host;
  merge_built_in(host);
  std::vector<Registry::Entry> models;
  try {
    host.load(c.file);
    for (const auto& entry : host.registry().entries()) {
      if (entry.kind == Kind::architecture) {
        models.push_back(entry);
      }
    }
  } catch (const Error&) { // pin-present or descriptor-consistent says so
    not_applicable("the plugin cannot be opened");
  }
  if (models.empty()) {
    not_applicable("for architecture");
  }
  for (const Registry::Entry& model : models) {
    naming_missing_shapes([&] { layouts_match_of({c.file, c.given, nullptr, &model}, host); });
  }
}

namespace {

/// Weights at which nothing is the identity or zero by chance.
void leave_initial_values(ParameterStore& parameters) {
  const at::NoGradGuard no_grad;
  double phase = 0;
  for (Parameter& parameter : parameters.all()) {
    const at::Tensor wave = at::arange(parameter.value.numel(), at::kDouble) * 12.9898 + phase++;
    parameter.value.detach().add_(wave.sin().view(parameter.value.sizes()), 0.1);
  }
}

/// Scores of tokens [begin, end) of the samples, read behind what the cache holds: [end - begin, B,
/// V].
at::Tensor scores(const SmallModel& model, int64_t begin, int64_t end, KeyValueCache* cache) {
  const at::NoGradGuard no_grad;
  Batch batch;
  batch.seq = end - begin;
  batch.batch = kBatch;
  batch.samples = model.batch.samples;
  batch.sequences = model.batch.sequences;
  for (const auto& [name, length] : batch.sequences) {
    batch.arrays[name + "_tokens"] = model.batch.arrays.at(name + "_tokens");
  }
  batch.arrays["tokens"] = model.batch.arrays.at("tokens").slice(0, begin, end).contiguous();
  batch.arrays["token_index"] = at::arange(begin, end, at::kLong);
  StepContext context(model.mesh, model.rules, batch, {.kv_cache = cache});
  return model.model->forward(context)["logits"].value;
}

void require_scores(const Architecture& architecture) {
  if (!scores_tokens(architecture)) {
    not_applicable("it gives no `logits` of `tokens` (Architecture::arrays, outputs)");
  }
}

constexpr double kSame = 1e-6; // a model may compute in float32 inside

} // namespace

void cached_generation(const Case& c) {
  const auto architecture = make<Architecture>(c);
  require_scores(*architecture);
  SmallModel model(*architecture, {.dtype = at::kDouble});
  leave_initial_values(model.model->parameters());
  if (!model.model->reads_cache()) {
    not_applicable(
        "some of its blocks do not say that they read a cache (Block::reads_cache): generation reads "
        "all tokens again for each new one"
    );
  }
  const at::Tensor whole = scores(model, 0, kSeq, nullptr);
  if (!(score_distance(whole, scores(model, 0, kSeq, nullptr)) <= kSame)) {
    fail(
        "its scores of the same tokens change from call to call, without a cache",
        "draw random numbers in training only (dropout() does), and keep no state between calls"
    );
  }
  // Pieces of any length, then tokens one by one; again with a new cache, for which nothing may be
  // left of the first text.
  for (const std::vector<int64_t>& ends : {std::vector<int64_t>{4}, {1, 3, 9}, {kSeq}}) {
    KeyValueCache cache(kSeq);
    std::vector<int64_t> pieces = ends;
    for (int64_t token = ends.back(); token < kSeq; ++token) {
      pieces.push_back(token + 1);
    }
    int64_t begin = 0;
    for (const int64_t end : pieces) {
      const double found =
          score_distance(whole.slice(0, begin, end), scores(model, begin, end, &cache));
      if (!(found <= kSame)) {
        fail(
            formatted(
                "generation reads tokens %lld to %lld alone, over what was kept of those before, and "
                "their scores differ from those of reading all by %.1e",
                static_cast<long long>(begin),
                static_cast<long long>(end - 1),
                found
            ),
            "where context.mode().kv_cache is set, attention, TokensBefore (nn/tokens_before.hpp) "
            "and layers with a CachedState (nn/cache.hpp) know other tokens; a block that looks at "
            "them in another way must not say that it reads_cache"
        );
      }
      begin = end;
    }
  }
}

void documents_apart(const Case& c) {
  const auto architecture = make<Architecture>(c);
  require_scores(*architecture);
  SmallModel model(*architecture, {.dtype = at::kDouble});
  leave_initial_values(model.model->parameters());
  const auto scores = [&model](const Batch& batch) {
    const at::NoGradGuard no_grad;
    StepContext context(model.mesh, model.rules, batch);
    return model.model->forward(context)["logits"].value;
  };
  Batch batch = model.batch;
  batch.arrays.erase("labels");
  const at::Tensor before = scores(batch);
  const auto compare = [&](const char* changed, bool first, const char* seen) {
    Batch other = batch;
    const auto change = [&](const std::string& array, int64_t length) {
      const int64_t middle = length * kSecondDocument / kSeq, end = length * kPadding / kSeq;
      at::Tensor tokens = batch.arrays[array].clone();
      at::Tensor document = first ? tokens.slice(0, 0, middle) : tokens.slice(0, middle, end);
      document.copy_((document + 1).remainder(architecture->vocab()));
      other.arrays[array] = tokens;
    };
    change("tokens", kSeq);
    for (const auto& [name, length] : batch.sequences) {
      change(name + "_tokens", length);
    }
    const auto rest = [&](const at::Tensor& logits) {
      return first ? logits.slice(0, kSecondDocument, kPadding)
                   : logits.slice(0, 0, kSecondDocument);
    };
    const double found = score_distance(rest(before), rest(scores(other)));
    if (!(found <= kSame)) {
      fail(
          formatted(
              "other tokens in the %s document of a sample change the scores of its %s one by "
              "%.1e, though the batch has segments",
              changed,
              seen,
              found
          ),
          "let a layer look at tokens of one value in context.array(\"segments\") only"
      );
    }
  };
  compare("first", /*first=*/true, "second");
  compare("second", /*first=*/false, "first");
}

namespace {

class Always : public RecomputePolicy {
public:
  explicit Always(Keep keep)
      : keep_(std::move(keep)) {}

  [[nodiscard]] Keep keep(int64_t) const override { return keep_; }

private:
  Keep keep_;
};

/// Recomputes one block of all.
class OneBlock : public RecomputePolicy {
public:
  explicit OneBlock(int64_t block)
      : block_(block) {}

  [[nodiscard]] Keep keep(int64_t layer) const override { return {.everything = layer != block_}; }

private:
  int64_t block_;
};

/// The tensors whose bits differ after a pass, the loss and the first of the gradients; empty if
/// none.
std::string differences(SmallModel& one, SmallModel& other) {
  std::vector<std::string> found;
  const double loss = one.train_once(), again = other.train_once();
  if (std::bit_cast<uint64_t>(loss) != std::bit_cast<uint64_t>(again)) {
    found.push_back("the loss (" + std::to_string(loss) + " and " + std::to_string(again) + ")");
  }
  const auto& others = other.model->parameters().all();
  auto theirs = others.begin();
  for (const Parameter& parameter : one.model->parameters().all()) {
    if (bits({parameter.main_grad}) != bits({(theirs++)->main_grad})) {
      found.push_back("the gradient of " + parameter.pieces.front().name);
      break;
    }
  }
  return join(found);
}

/// The tensors that differ with a policy; empty if none.
std::string differences(const Architecture& architecture, const RecomputePolicy& policy) {
  SmallModel plain(architecture, {}), other(architecture, {.policy = &policy});
  return differences(plain, other);
}

void check_recompute(
    const Architecture& architecture, const RecomputePolicy& policy, const std::string& what
) {
  const std::string found = differences(architecture, policy);
  if (!found.empty()) {
    fail(
        "with " + what + " recomputed, other bits come out: " + found,
        "let a block's forward depend on its inputs and the context only"
    );
  }
}

/// megahost's, and those of an architecture's own.
std::vector<std::string> recompute_parts(const Case& c) {
  std::vector<std::string> parts(kRecomputeParts.begin(), kRecomputeParts.end());
  const auto& own = c.entry->recompute_parts;
  parts.insert(parts.end(), own.begin(), own.end());
  return parts;
}

/// Whether something is recomputed where this part is.
bool runs_part(const Architecture& architecture, const std::string& part) {
  const Always policy({.everything = true, .redo = {part}});
  SmallModel model(architecture, {.policy = &policy});
  const at::Tensor loss = model.loss();
  std::set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> left{loss.grad_fn().get()};
  while (!left.empty()) {
    torch::autograd::Node* node = left.back();
    left.pop_back();
    if (node == nullptr || !seen.insert(node).second) {
      continue;
    }
    if (node->name().find("::Recompute") != std::string::npos) {
      return true;
    }
    for (const auto& edge : node->next_edges()) {
      left.push_back(edge.function.get());
    }
  }
  return false;
}

/// "all of layers.2, norms of layers.3"
std::string text(const std::vector<Keep>& keep) {
  std::vector<std::string> texts;
  for (size_t layer = 0; layer < keep.size(); ++layer) {
    if (!keep[layer].everything || !keep[layer].redo.empty()) {
      const std::string parts = keep[layer].everything ? join(keep[layer].redo) : "all";
      texts.push_back(parts + " of layers." + std::to_string(layer));
    }
  }
  return join(texts);
}

} // namespace

void recompute_bit_equal(const Case& c) {
  if (c.entry->kind == Kind::architecture) {
    const auto architecture = make<Architecture>(c);
    const Always all({.everything = false});
    if (!differences(*architecture, all).empty()) { // one of them may be enough
      for (int64_t block = 0; block < architecture->layers(); ++block) {
        check_recompute(*architecture, OneBlock(block), "layers." + std::to_string(block));
      }
      check_recompute(*architecture, all, "all blocks");
    }
    for (const std::string& part : recompute_parts(c)) {
      check_recompute(*architecture, Always({.everything = true, .redo = {part}}), "part " + part);
    }
    for (const std::string& part : c.entry->recompute_parts) {
      if (!runs_part(*architecture, part)) {
        fail(
            "it declares the part \"" + part + "\" for recompute, which no block of it runs",
            "run it by StepContext::part, or leave it out of recompute_parts"
        );
      }
    }
    return;
  }
  const int64_t layers = arguments<RecomputePolicy>().layers;
  const auto policy = make<RecomputePolicy>(c);
  std::vector<Keep> keep;
  for (int64_t layer = 0; layer < layers; ++layer) {
    keep.push_back(policy->keep(layer));
    if (!keep.back().everything && !c.entry->recomputes_blocks) {
      fail(
          "it runs layers." + std::to_string(layer) + " again as a whole, and does not say so",
          "static bool recomputes_blocks() { return true; }: schedules that split the backward pass "
          "refuse it then"
      );
    }
    for (const std::string& part : keep.back().redo) {
      if (std::find(kRecomputeParts.begin(), kRecomputeParts.end(), part) ==
          kRecomputeParts.end()) {
        fail(
            "it names the part \"" + part + "\", which no block of megahost has",
            "there are " + join(recompute_parts(c))
        );
      }
    }
  }
  check_recompute(*small_decoder(layers), *policy, text(keep));
}

} // namespace mh::check
