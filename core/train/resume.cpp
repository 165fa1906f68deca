#include "core/train/resume.hpp"

#include "core/base/text.hpp"
#include "core/formats/crc32c.hpp"
#include "core/model/plugin_call.hpp"
#include "core/recipe/changes.hpp"
#include "core/schema/sections.hpp"
#include "megahost/corpus.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <span>
#include <variant>

namespace mh {

namespace {

/// Schemas by section, each with the fields of the plugin that the recipe names.
SectionSchemas schemas_of(const Recipe& recipe, Host& host) {
  SectionSchemas schemas = core_schemas();
  for (const std::string& name : section_names()) {
    Schema& schema = schemas[name] = shared_schema(name, host.known(Kind::strategy));
    const PluginSectionInfo* section = plugin_section(name);
    const Value* use = section ? recipe.tree.find_path(name + ".use") : nullptr;
    if (use != nullptr) {
      schema = with_plugin(schema, host.require(section->kind, use->as_string()).schema);
    }
  }
  return schemas;
}

/// Whether a size of the vocabulary is written on one side, and is what the tokenizer gives the
/// other.
bool same_vocab(const KeyChange& change, int64_t vocab) {
  const auto& written = change.now ? change.now : change.saved;
  return change.key == "model.vocab" && change.now.has_value() != change.saved.has_value() &&
         *written == Value(vocab);
}

/// The changes by what a resumed run makes of them.
struct Judged {
  std::vector<KeyChange> free, allowed, refused;
};

Judged judge(const ResumedRun& run, const Progress& saved) {
  Judged judged;
  const bool same_data = saved.data.empty() || saved.data == run.data;
  for (KeyChange& change :
       changes_since(saved.sections, run.recipe.tree, schemas_of(run.recipe, run.host))) {
    if (same_vocab(change, run.vocab) || is_allowed({"load"}, change.key)) {
      continue; // a run that goes on loads nothing but its own
    }
    auto& kind = change.may_change || (change.path && same_data) ? judged.free
                 : is_allowed(run.allowed, change.key)           ? judged.allowed
                                                                 : judged.refused;
    kind.push_back(std::move(change));
  }
  return judged;
}

/// State of an optimizer or of fp8 scales; all else is the model's.
bool is_state(const std::string& tensor) {
  return tensor.starts_with("optimizer.") || tensor.starts_with("fp8.");
}

/// The first tensor that keeps a checkpoint's weights (or its state) from a run; empty if none
/// does.
std::string obstacle(const TensorFit& fit, bool state) {
  for (const auto* names : {&fit.misfit, &fit.unused}) {
    const auto one = std::find_if(names->begin(), names->end(), [&](const std::string& name) {
      return is_state(name) == state;
    });
    if (one != names->end() && (!state || names == &fit.misfit)) { // unused state may be left out
      return *one;
    }
  }
  return "";
}

/// The ways on: only those that the checkpoint's tensors allow.
std::string ways_on(const ResumedRun& run, const TensorFit& fit, const std::string& keys) {
  const std::string same = "resume with the checkpoint's values";
  const std::string anew = "begin a new run with --weights " + run.folder;
  const std::string weight = obstacle(fit, /*state=*/false), state = obstacle(fit, /*state=*/true);
  if (!weight.empty()) {
    return same + ": its tensors do not fit this model (" + weight + ")";
  }
  if (!state.empty()) {
    return same + ", or " + anew + ": it lacks state that this run needs (" + state + ")";
  }
  return same + ", " + anew + ", or say that you mean it:" + keys;
}

[[noreturn]] void refuse_changes(
    const ResumedRun& run, const Progress& saved, const std::string& what, const std::string& ways
) {
  throw Error(
      "the checkpoint of step " + std::to_string(saved.step) + " in " + run.folder +
          " is of another recipe: " + what,
      ways
  );
}

/// Whether a corpus makes other samples for another value of a key, see Corpus::Args.
bool decides_samples(const KeyChange& change) {
  return is_allowed(
      {"data", "tokenizer", "train.seed", "model.seq_length", "model.vocab"}, change.key
  );
}

} // namespace

std::string texts_of(const std::vector<KeyChange>& changes) {
  std::vector<std::string> texts;
  for (const KeyChange& change : changes) {
    texts.push_back(change.text());
  }
  return join(texts);
}

std::string allowing(const std::vector<KeyChange>& changes) {
  std::string options;
  for (const KeyChange& change : changes) {
    options += " --allow-change " + change.key;
  }
  return options;
}

std::string data_fingerprint(const Session& session) {
  constexpr int64_t kSamples = 8;
  const Corpus& corpus = *session.corpus;
  std::string sizes;
  for (const Split split : {Split::train, Split::valid, Split::test}) {
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(samples_of(corpus, split));
  }
  uint32_t sum = 0;
  for (int64_t i = 0; i < std::min(kSamples, samples_of(corpus, Split::train)); ++i) {
    const Sample sample =
        in_plugin(corpus, "sample", [&] { return corpus.sample(Split::train, i); });
    for (const auto& [name, array] : sample) {
      sum = crc32c(name, sum);
      std::visit(
          [&sum](const auto& values) { sum = crc32c(std::as_bytes(std::span(values)), sum); }, array
      );
    }
  }
  return sizes + " samples, first ones " + crc_text(sum);
}

std::vector<KeyChange> other_model(
    const Recipe& recipe,
    Host& host,
    const std::map<std::string, std::string>& sections,
    int64_t vocab
) {
  std::vector<KeyChange> changes;
  for (KeyChange& change : changes_since(sections, recipe.tree, schemas_of(recipe, host))) {
    if (change.key == "model.use") {
      return {};
    }
    if (is_allowed({"model", "tokenizer"}, change.key) && !change.may_change && !change.path &&
        !same_vocab(change, vocab)) {
      changes.push_back(std::move(change));
    }
  }
  return changes;
}

std::vector<std::string>
judge_checkpoint(const ResumedRun& run, const Progress& saved, const TensorFit& fit) {
  const auto& unused = fit.unused;
  const Judged judged = judge(run, saved);
  if (!judged.refused.empty()) {
    const std::string ways = ways_on(run, fit, allowing(judged.refused));
    refuse_changes(run, saved, texts_of(judged.refused), ways);
  }
  const bool other_data = !saved.data.empty() && saved.data != run.data;
  const bool means_it = is_allowed(run.allowed, "data") ||
                        std::any_of(judged.allowed.begin(), judged.allowed.end(), decides_samples);
  if (other_data && !means_it) {
    refuse_changes(
        run,
        saved,
        "its data are " + saved.data + ", this run's " + run.data + ", though no key has changed",
        ways_on(run, fit, " --allow-change data")
    );
  }
  const bool drops_state = !judged.allowed.empty() && !unused.empty() &&
                           std::all_of(unused.begin(), unused.end(), is_state);
  if (!drops_state) {
    require_all_used(saved, fit);
  }
  std::vector<std::string> notes;
  if (!judged.free.empty()) {
    notes.push_back("changed since the checkpoint: " + texts_of(judged.free));
  }
  if (!judged.allowed.empty()) {
    notes.push_back("changed since the checkpoint, by --allow-change: " + texts_of(judged.allowed));
  }
  if (other_data) {
    notes.push_back(
        "other data than the checkpoint's, by --allow-change: " + run.data + " (checkpoint " +
        saved.data + ")"
    );
  }
  if (drops_state) {
    notes.push_back("left out of the checkpoint, by --allow-change: " + join(unused));
  }
  return notes;
}

} // namespace mh
