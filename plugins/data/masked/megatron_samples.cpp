#include "megatron_samples.hpp"

#include "../corpus_text.hpp"

#include <cmath>
#include <limits>
#include <random>
#include <utility>

namespace mh::masked {
namespace {

/// Documents with a longer sentence give no sample.
constexpr uint64_t kLongSentence = 512;

/// Tokens that a sample is to have: most have `longest`.
class Targets {
public:
  explicit Targets(const SentenceTerms& terms)
      : longest_(static_cast<uint64_t>(terms.longest))
      , ratio_(terms.short_prob > 0 ? static_cast<uint64_t>(std::round(1 / terms.short_prob)) : 0)
      , generator_(static_cast<uint32_t>(terms.seed)) {}

  uint32_t next() {
    if (ratio_ == 0) {
      return static_cast<uint32_t>(longest_);
    }
    const uint64_t drawn = generator_();
    return static_cast<uint32_t>(drawn % ratio_ == 0 ? 2 + drawn % (longest_ - 1) : longest_);
  }

private:
  uint64_t longest_, ratio_; // one of `ratio_` is shorter
  std::mt19937 generator_;
};

bool has_long_sentence(const IndexedDataset& dataset, uint64_t first, uint64_t end) {
  for (uint64_t i = first; i < end; ++i) {
    if (dataset.length(i) > kLongSentence) {
      return true;
    }
  }
  return false;
}

/// The samples of one document.
void add_runs(
    const IndexedDataset& dataset,
    uint64_t document,
    const SentenceTerms& terms,
    Targets& targets,
    std::vector<SentenceRun>& ret_runs
) {
  const auto fewest = static_cast<uint64_t>(terms.fewest);
  uint64_t first = dataset.document_begin(document);
  const uint64_t end = dataset.document_begin(document + 1);
  if (end - first < fewest || (end - first > 1 && has_long_sentence(dataset, first, end))) {
    return;
  }
  uint32_t target = targets.next();
  uint64_t tokens = 0;
  for (uint64_t i = first; i < end; ++i) {
    tokens += dataset.length(i);
    const uint64_t left = end - i - 1, count = i + 1 - first;
    if (left == 0 || (tokens >= target && left > 1 && count >= fewest)) {
      ret_runs.push_back({first, static_cast<uint32_t>(count), target});
      first = i + 1;
      target = targets.next();
      tokens = 0;
    }
  }
}

} // namespace

std::string check_samples(const SamplesConfig& config) {
  if (!config.megatron()) {
    return config.weights.empty() && config.dataloader == "single" && config.data_sharding
               ? ""
               : "weights, dataloader and data_sharding are of the order \"megatron\"";
  }
  if (config.weights.empty()) {
    return config.paths.size() == 1
               ? ""
               : "Megatron's blend of several corpora of sentences needs their shares: give "
                 "data.weights";
  }
  if (config.weights.size() != config.paths.size()) {
    return "there are " + std::to_string(config.weights.size()) + " weights for " +
           std::to_string(config.paths.size()) + " paths";
  }
  const bool positive = std::ranges::all_of(config.weights, [](double weight) {
    return weight > 0 && std::isfinite(weight);
  });
  return positive ? "" : "weights are greater than 0";
}

std::vector<SentenceRun> sentence_runs(
    const IndexedDataset& dataset,
    std::pair<uint64_t, uint64_t> documents,
    int64_t wanted,
    const SentenceTerms& terms
) {
  Targets targets(terms);
  std::vector<SentenceRun> runs;
  size_t before = 0;
  do {
    before = runs.size();
    for (uint64_t document = documents.first; document < documents.second; ++document) {
      add_runs(dataset, document, terms, targets, runs);
    }
  } while (runs.size() > before && std::ssize(runs) < wanted);
  std::mt19937_64 generator(static_cast<uint64_t>(terms.seed) + 1);
  for (size_t i = runs.size(); i-- > 1;) {
    std::swap(runs[i], runs[generator() % (i + 1)]);
  }
  return runs;
}

MegatronSamples::MegatronSamples(
    const SamplesConfig& config, const Corpus::Args& args, SentenceTerms terms
)
    : args_(args)
    , terms_(terms) {
  constexpr auto kMostSeed = static_cast<uint64_t>(std::numeric_limits<int32_t>::max()) - 1;
  if (args.seed > kMostSeed) {
    throw Error(
        "train.seed " + std::to_string(args.seed) +
            " is more than Megatron's order of sentences can have, " + std::to_string(kMostSeed),
        "choose a smaller one",
        exit_code::recipe
    );
  }
  terms_.seed = static_cast<int32_t>(args.seed);
  for (const std::string& path : config.paths) {
    check_ids(datasets_.emplace_back(path), args.vocab);
  }
  for (const Split split : {Split::train, Split::valid, Split::test}) {
    const auto part = static_cast<size_t>(split);
    if (args.split[part] <= 0) {
      continue;
    }
    try {
      splits_[part] = make_part(config, split);
    } catch (const Error& error) {
      if (split == Split::train) { // a run without evaluation needs no validation split
        throw;
      }
      splits_[part].lack = error;
    }
  }
}

std::vector<SentenceRun>
MegatronSamples::runs_of(const IndexedDataset& dataset, Split split, int64_t wanted) const {
  const auto part = static_cast<size_t>(split);
  const auto documents = split_range(split_bounds(args_.split, part), dataset.documents());
  auto runs = sentence_runs(dataset, documents, wanted, terms_);
  if (runs.empty()) {
    throw Error(
        dataset.prefix() + ": the " + kSplitNames[part] + " split holds " +
            documents_text(documents.second - documents.first) + " of " +
            thousands(dataset.documents()) + ", and none that Megatron takes a sample of: one of " +
            (terms_.fewest > 1 ? "two sentences or more" : "a sentence or more") +
            ", of which none has more than " + std::to_string(kLongSentence) + " tokens",
        "split documents into sentences with `megahost data prepare`, or give more of them a share "
        "in data.split",
        exit_code::data
    );
  }
  return runs;
}

MegatronSamples::Part MegatronSamples::make_part(const SamplesConfig& config, Split split) const {
  const int64_t wanted = args_.wanted[static_cast<size_t>(split)];
  Part part;
  if (config.weights.empty()) {
    part.runs.push_back(runs_of(datasets_.front(), split, wanted));
    part.size = part.runs.front().size();
  } else {
    indexed::MegatronShares all = indexed::megatron_shares(config.weights, wanted);
    for (size_t i = 0; i < datasets_.size(); ++i) {
      part.runs.push_back(runs_of(datasets_[i], split, all.made[i]));
      part.size += wanted > 0 ? 0 : part.runs.back().size();
    }
    part.size += all.size;
    part.blend = std::make_unique<indexed::Blend>(std::move(all.shares));
  }
  if (config.dataloader == "cyclic") {
    part.cyclic = std::make_unique<indexed::CyclicOrder>(
        part.size, args_.micro, args_.data_ranks, config.data_sharding
    );
  }
  return part;
}

MegatronSamples::Sentences MegatronSamples::sample(Split split, int64_t index) const {
  const Part& part = splits_[static_cast<size_t>(split)];
  if (part.lack) {
    throw Error(*part.lack);
  }
  if (part.size == 0) {
    refuse_empty(split, args_, found());
  }
  auto number = static_cast<uint64_t>(index);
  number = part.cyclic ? part.cyclic->at(number) : number % part.size;
  const indexed::Blend::Place place =
      part.blend ? part.blend->at(number) : indexed::Blend::Place{0, number};
  const auto& runs = part.runs[place.corpus];
  const SentenceRun& run = runs[place.sample % runs.size()];
  const IndexedDataset& dataset = datasets_[place.corpus];
  const auto seed = static_cast<uint64_t>(terms_.seed) + place.sample;
  Sentences found{{}, run.target, indexed::RandomState(static_cast<uint32_t>(seed))};
  for (uint64_t i = run.first; i < run.first + run.count; ++i) {
    auto& ids = found.ids.emplace_back(dataset.length(i));
    dataset.read(i, 0, ids);
    for (size_t at = 0; at < ids.size(); ++at) {
      if (ids[at] < 0 || ids[at] >= args_.vocab) {
        throw no_such_id(dataset, {ids[at], i, at}, args_.vocab);
      }
    }
  }
  return found;
}

std::string MegatronSamples::found() const {
  uint64_t documents = 0, tokens = 0;
  for (const IndexedDataset& dataset : datasets_) {
    documents += dataset.documents();
    tokens += dataset.tokens();
  }
  return "in Megatron's order: " + documents_text(documents) + ", " + thousands(tokens) + " tokens";
}

} // namespace mh::masked
