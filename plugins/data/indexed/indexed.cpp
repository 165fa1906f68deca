#include "indexed.hpp"

#include "../words.hpp"

#include <megahost/error.hpp>
#include <megahost/shuffle.hpp>
#include <megahost/tokenizer.hpp>

#include <algorithm>
#include <cmath>

namespace mh::indexed {
namespace {

/// The documents of a split: [first, second).
///
/// Source:  Megatron-LM, blended_megatron_dataset_config.py, convert_split_vector_to_split_matrix,
///          and Python's rounding of halves to even
std::pair<uint64_t, uint64_t>
split_bounds(const std::array<double, 3>& shares, size_t split, uint64_t documents) {
  double before = 0;
  for (size_t i = 0; i < split; ++i) {
    before += shares[i];
  }
  const auto bound = [&](double share) {
    const double place = std::nearbyint(share * static_cast<double>(documents));
    return std::min(static_cast<uint64_t>(place), documents);
  };
  return {bound(before), bound(before + shares[split])};
}

std::string documents_text(uint64_t count) {
  return thousands(count) + (count == 1 ? " document" : " documents");
}

std::string check_weights(const IndexedCorpus::Config& config) {
  if (!config.weights.empty() && config.weights.size() != config.paths.size()) {
    return "there are " + std::to_string(config.weights.size()) + " weights for " +
           std::to_string(config.paths.size()) + " paths, expected one for each";
  }
  const auto bad =
      std::ranges::find_if(config.weights, [](double w) { return !(w > 0) || !std::isfinite(w); });
  return bad == config.weights.end() ? "" : "a weight is not above 0: leave its path out instead";
}

} // namespace

void IndexedCorpus::fields(Fields<Config>& fields) {
  fields
      .add(
          "paths",
          &Config::paths,
          "prefixes of .bin/.idx pairs, as `megahost data prepare` or Megatron writes them"
      )
      .path()
      .required();
  fields.add(
      "weights",
      &Config::weights,
      "share of each path among the samples, in any unit; {}: as many as each has"
  );
  fields.add(
      "reset_positions", &Config::reset_positions, "positions begin anew with each document"
  );
  fields.add(
      "reset_attention", &Config::reset_attention, "tokens attend to their own document only"
  );
  fields.add(
      "mask_eod_loss",
      &Config::mask_eod_loss,
      "no loss for what follows an end of document: the next document's first token"
  );
  fields.add(
      "shuffle",
      &Config::shuffle,
      "documents and samples of an epoch in random order; else in that of the file"
  );
  fields.add(
      "eod", &Config::eod, "id that ends a document; the tokenizer's end of document if absent"
  );
  fields.check("weights", check_weights);
  fields.check("paths", [](const Config& config) {
    return std::string(config.paths.empty() ? "it names no corpus" : "");
  });
}

std::vector<ArraySpec> IndexedCorpus::arrays(const Config& config, const Args& args) {
  auto arrays = decoder_arrays(args.seq_length);
  if (config.reset_positions) {
    arrays.push_back({"positions", ArraySpec::Type::int64, axis::seq, args.seq_length});
  }
  if (config.reset_attention) {
    arrays.push_back({"segments", ArraySpec::Type::int64, axis::seq, args.seq_length});
  }
  return arrays;
}

IndexedCorpus::IndexedCorpus(const Config& config, const Args& args)
    : config_(config)
    , args_(args)
    , eod_(config.eod) {
  if (!eod_ && args.tokenizer != nullptr) {
    eod_ = args.tokenizer->end_of_document();
  }
  if (config.mask_eod_loss && !eod_) {
    throw Error(
        "data.mask_eod_loss needs an end of document, and the tokenizer has none",
        "set data.eod to the id that ends documents in this corpus",
        exit_code::recipe
    );
  }
  for (const std::string& path : config.paths) {
    datasets_.emplace_back(path);
  }
  for (const Split split : {Split::train, Split::valid, Split::test}) {
    if (args.split[static_cast<size_t>(split)] > 0) {
      splits_[static_cast<size_t>(split)] = mixture_or_reason(split);
    }
  }
}

/// A run without evaluation needs no validation split.
IndexedCorpus::Mixture IndexedCorpus::mixture_or_reason(Split split) const {
  try {
    return make_mixture(split);
  } catch (const Error& error) {
    if (split == Split::train) {
      throw;
    }
    Mixture none;
    none.lacks = error;
    return none;
  }
}

IndexedCorpus::Mixture IndexedCorpus::make_mixture(Split split) const {
  const auto seq = static_cast<uint64_t>(args_.seq_length);
  const auto part = static_cast<size_t>(split);
  Mixture mixture;
  std::vector<double> weights = config_.weights;
  for (const IndexedDataset& dataset : datasets_) {
    const auto [first, last] = split_bounds(args_.split, part, dataset.sequences());
    const uint64_t shuffle = mix(split == Split::train ? args_.seed : 0) ^
                             mix(mixture.packings.size() * 3 + static_cast<uint64_t>(split));
    const auto key = config_.shuffle ? std::optional(shuffle) : std::nullopt;
    mixture.packings.push_back(std::make_unique<Packing>(dataset, first, last, seq, key));
    const Packing& packing = *mixture.packings.back();
    if (packing.size() == 0) {
      throw Error(
          dataset.prefix() + ": the " + kSplitNames[part] + " split holds " +
              documents_text(packing.documents()) + " of " + thousands(dataset.sequences()) +
              " with " + thousands(packing.tokens()) + " tokens, but a sample needs " +
              thousands(seq + 1),
          "give more documents, a larger share in data.split, or a shorter model.seq_length",
          exit_code::data
      );
    }
    mixture.size += packing.size();
    if (config_.weights.empty()) {
      weights.push_back(static_cast<double>(packing.size()));
    }
  }
  mixture.blend = std::make_unique<Blend>(weights);
  return mixture;
}

int64_t IndexedCorpus::size(Split split) const {
  return static_cast<int64_t>(splits_[static_cast<size_t>(split)].size);
}

void IndexedCorpus::check_id(
    const IndexedDataset& dataset, const Piece& piece, size_t at, int64_t id
) const {
  if (id >= 0 && id < args_.vocab) {
    return;
  }
  throw Error(
      dataset.prefix() + ".bin: document " + std::to_string(piece.document) + " holds the id " +
          std::to_string(id) + " at token " + std::to_string(piece.first + at) +
          ", but the model has ids 0 to " + std::to_string(args_.vocab - 1),
      "raise model.vocab, or use the tokenizer and the corpus that belong together",
      exit_code::data
  );
}

Sample IndexedCorpus::sample(Split split, int64_t index) const {
  const Mixture& mixture = splits_[static_cast<size_t>(split)];
  if (mixture.lacks) {
    throw *mixture.lacks;
  }
  if (mixture.size == 0) {
    throw Error(
        std::string("the ") + kSplitNames[static_cast<size_t>(split)] +
            " split of the corpus is empty",
        "give it a share in data.split",
        exit_code::data
    );
  }
  const Blend::Place place = mixture.blend->at(static_cast<uint64_t>(index));
  const IndexedDataset& dataset = datasets_[place.corpus];
  const auto seq = static_cast<size_t>(args_.seq_length);
  std::vector<int64_t> ids(seq + 1), positions(seq + 1), segments(seq + 1);
  std::vector<float> loss_mask(seq, 1.0F);
  size_t at = 0, begin = 0;
  int64_t segment = -1;
  bool ended = true; // the next token begins a document
  for (const Piece& piece : mixture.packings[place.corpus]->sample(place.sample)) {
    const std::span<int64_t> tokens(ids.data() + at, piece.count);
    dataset.read(piece.document, piece.first, tokens);
    ended = true;
    for (size_t i = 0; i < tokens.size(); ++i, ++at) {
      check_id(dataset, piece, i, tokens[i]);
      if (ended) {
        begin = at;
        ++segment;
      }
      positions[at] = static_cast<int64_t>(at - begin);
      segments[at] = segment;
      ended = tokens[i] == eod_;
      if (ended && config_.mask_eod_loss && at < seq) {
        loss_mask[at] = 0;
      }
    }
  }
  Sample sample;
  sample["labels"] = std::vector<int64_t>(ids.begin() + 1, ids.end());
  const auto inputs = [&](std::vector<int64_t>& values) {
    values.pop_back();
    return std::move(values);
  };
  sample["tokens"] = inputs(ids);
  sample["loss_mask"] = std::move(loss_mask);
  if (config_.reset_positions) {
    sample["positions"] = inputs(positions);
  }
  if (config_.reset_attention) {
    sample["segments"] = inputs(segments);
  }
  return sample;
}

std::string IndexedCorpus::summary() const {
  uint64_t documents = 0, tokens = 0;
  for (const IndexedDataset& dataset : datasets_) {
    documents += dataset.sequences();
    tokens += dataset.tokens();
  }
  std::array<uint64_t, 3> shares{};
  for (size_t split = 0; split < shares.size(); ++split) {
    for (const auto& packing : splits_[split].packings) {
      shares[split] += packing->tokens();
    }
  }
  const std::string several =
      datasets_.size() == 1 ? "" : std::to_string(datasets_.size()) + " corpora, ";
  return "indexed: " + several + documents_text(documents) + ", " + thousands(tokens) +
         " tokens (" + describe_splits(shares, args_.split) + ")";
}

} // namespace mh::indexed
