#include "indexed.hpp"

#include "../corpus_text.hpp"
#include "fill_in.hpp"

#include <megahost/error.hpp>
#include <megahost/shuffle.hpp>
#include <megahost/tokenizer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace mh::indexed {
namespace {

/// The pad of Megatron's order; none if it has another meaning, too.
///
/// Source:  megatron-core 0.16.1, megatron_dataset.py
std::optional<int32_t> pad_of(const Tokenizer& tokenizer) {
  const SpecialIds ids = tokenizer.special_ids();
  for (const auto& other :
       {ids.bos, ids.eos, ids.unk, ids.mask, ids.cls, ids.sep, tokenizer.end_of_document()}) {
    if (other == ids.pad) {
      return std::nullopt;
    }
  }
  return ids.pad;
}

IndexedDataset::Access access_of(const Config& config) {
  return config.mmap ? IndexedDataset::Access::mapped : IndexedDataset::Access::read;
}

} // namespace

void IndexedCorpus::fields(Fields<Config>& fields) {
  config_fields(fields);
}

std::vector<ArraySpec> IndexedCorpus::arrays(const Config& config, const Args& args) {
  auto arrays = decoder_arrays(args.seq_length);
  const bool apart = config.packing == "first_fit";
  if (config.reset_positions || apart) {
    arrays.push_back({"positions", ArraySpec::Type::int64, axis::seq, args.seq_length});
  }
  if (config.reset_attention || apart) {
    arrays.push_back({"segments", ArraySpec::Type::int64, axis::seq, args.seq_length});
  }
  return arrays;
}

IndexedCorpus::IndexedCorpus(const Config& config, const Args& args)
    : config_(config)
    , args_(args)
    , eod_(config.eod)
    , sources_(config.all_sources()) {
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
  if (config.megatron() && (config.reset_positions || config.reset_attention) && !eod_) {
    throw Error(
        "Megatron's documents end with an end of document, and the tokenizer has none",
        "set data.eod to the id that ends documents in this corpus",
        exit_code::recipe
    );
  }
  for (const auto& [key, id] :
       {std::pair("eod", config.eod),
        std::pair("fim_prefix", config.fim_prefix),
        std::pair("fim_middle", config.fim_middle),
        std::pair("fim_suffix", config.fim_suffix)}) {
    if (id && (*id < 0 || *id >= args.vocab)) {
      throw Error(
          std::string("data.") + key + " is " + std::to_string(*id) +
              ", but the model has ids 0 to " + std::to_string(args.vocab - 1),
          "raise model.vocab, or name an id of the tokenizer",
          exit_code::recipe
      );
    }
  }
  if (args.tokenizer != nullptr) {
    pad_ = pad_of(*args.tokenizer).value_or(kNoPad);
  }
  for (const SourceConfig& source : sources_) {
    check_ids(datasets_.emplace_back(source.path, access_of(config)), args.vocab);
  }
  if (config.supervised) {
    open_masks();
  }
  for (const Split split : {Split::train, Split::valid, Split::test}) {
    const auto part = static_cast<size_t>(split);
    try {
      splits_[part] = Mixture(config_, args_, split, sources_, datasets_, masks_);
    } catch (const Error& error) {
      if (split == Split::train &&
          !args.whole_splits) { // a run without evaluation needs no validation split
        throw;
      }
      lacks_[part] = error;
    }
  }
}

const Mixture& IndexedCorpus::mixture(Split split) const {
  const auto part = static_cast<size_t>(split);
  if (lacks_[part]) {
    throw Error(*lacks_[part]);
  }
  if (splits_[part].size() == 0) {
    throw Error(
        std::string("the ") + kSplitNames[part] + " split of the corpus is empty",
        "give it a share in data.split",
        exit_code::data
    );
  }
  return splits_[part];
}

int64_t IndexedCorpus::size(Split split) const {
  return static_cast<int64_t>(splits_[static_cast<size_t>(split)].size());
}

std::vector<Corpus::Part> IndexedCorpus::parts(Split split) const {
  return splits_[static_cast<size_t>(split)].parts();
}

Corpus::Evaluation IndexedCorpus::evaluation() const {
  return config_.full_validation ? Evaluation::whole
         : config_.megatron()    ? Evaluation::onward
                                 : Evaluation::same;
}

void IndexedCorpus::check_id(
    const IndexedDataset& dataset, const DocumentRange& piece, size_t at, int64_t id
) const {
  if (id < 0 || id >= args_.vocab) {
    throw no_such_id(dataset, {id, piece.document, piece.first + at}, args_.vocab);
  }
}

void IndexedCorpus::open_masks() {
  constexpr std::string_view kEnding = "_document";
  for (const IndexedDataset& dataset : datasets_) {
    std::string prefix = dataset.prefix();
    if (prefix.ends_with(kEnding)) {
      prefix.resize(prefix.size() - kEnding.size());
    }
    try {
      masks_.emplace_back(prefix + "_loss", access_of(config_));
    } catch (const Error& error) {
      throw Error(
          "data.supervised needs " + prefix + "_loss next to " + dataset.prefix() + ": " +
              error.what(),
          "megahost data prepare --template chatml (or llama3) makes both of conversations",
          exit_code::data
      );
    }
    const IndexedDataset& mask = masks_.back();
    bool fits = mask.sequences() == dataset.sequences();
    for (uint64_t i = 0; fits && i < mask.sequences(); ++i) {
      fits = mask.length(i) == dataset.length(i);
    }
    if (!fits) {
      throw Error(
          mask.prefix() + " has other documents than " + dataset.prefix(),
          "make both again with `megahost data prepare --template`",
          exit_code::data
      );
    }
  }
}

/// The ids of a piece, and for each whether its loss counts.
void IndexedCorpus::read_piece(
    const Mixture::Place& place, const DocumentRange& piece, Ids& ret_ids, Ids& ret_mask
) const {
  const IndexedDataset& dataset = datasets_[place.member.dataset];
  ret_ids.resize(piece.count);
  dataset.read(piece.document, piece.first, ret_ids);
  for (size_t i = 0; i < ret_ids.size(); ++i) {
    check_id(dataset, piece, i, ret_ids[i]);
  }
  ret_mask.assign(piece.count, 1);
  if (config_.supervised) {
    masks_[place.member.dataset].read(piece.document, piece.first, ret_mask);
  }
}

/// Moves the middle of some documents to their end; `number` counts the documents of a sample.
void IndexedCorpus::change_ids(
    const Mixture::Place& place, uint64_t number, Ids& ret_ids, Ids& ret_mask
) const {
  if (config_.fim_rate == 0) {
    return;
  }
  const FillIn how{
      config_.fim_rate,
      config_.fim_spm_rate,
      *config_.fim_prefix,
      *config_.fim_middle,
      *config_.fim_suffix};
  const uint64_t sample = mix(mix(args_.seed) ^ mix(place.number * 2 + 1)) + place.member.first;
  const bool ended = eod_ && !ret_ids.empty() && ret_ids.back() == *eod_;
  const int64_t last = ended ? ret_mask.back() : 0;
  if (ended) { // the document ends where it ended
    ret_ids.pop_back();
    ret_mask.pop_back();
  }
  fill_in(how, mix(sample ^ mix(place.member.dataset)) + mix(number), ret_ids, ret_mask);
  if (ended) {
    ret_ids.push_back(*eod_);
    ret_mask.push_back(last);
  }
}

Sample IndexedCorpus::sample(Split split, int64_t index) const {
  const Mixture::Place place = mixture(split).at(static_cast<uint64_t>(index));
  Rows rows = config_.whole_documents() ? document_rows(place) : stream_rows(place);
  const bool apart = config_.packing == "first_fit";
  Sample sample;
  sample["tokens"] = std::move(rows.tokens);
  sample["labels"] = std::move(rows.labels);
  sample["loss_mask"] = std::move(rows.loss_mask);
  if (config_.reset_positions || apart) {
    sample["positions"] = std::move(rows.positions);
  }
  if (config_.reset_attention || apart) {
    sample["segments"] = std::move(rows.segments);
  }
  return sample;
}

/// The pieces joined: the last token of one has the first of the next as its label.
IndexedCorpus::Rows IndexedCorpus::stream_rows(const Mixture::Place& place) const {
  const auto seq = static_cast<size_t>(args_.seq_length);
  Ids ids(seq + 1, pad_), counts(seq + 1, 1), piece_ids, piece_counts;
  Rows rows;
  rows.positions.resize(seq + 1);
  rows.segments.resize(seq + 1);
  rows.loss_mask.assign(seq, 1.0F);
  size_t at = 0, begin = 0;
  int64_t segment = -1;
  bool ended = true; // the next token begins a document
  uint64_t number = 0;
  for (const DocumentRange& piece : place.pieces) {
    read_piece(place, piece, piece_ids, piece_counts);
    change_ids(place, number++, piece_ids, piece_counts);
    std::ranges::copy(piece_ids, ids.begin() + static_cast<ptrdiff_t>(at));
    std::ranges::copy(piece_counts, counts.begin() + static_cast<ptrdiff_t>(at));
    at += piece.count;
  }
  const size_t end = at; // behind it nothing is there; in Megatron's order there is the pad
  size_t piece = 0, piece_end = 0;
  for (at = 0; at <= seq; ++at) {
    if (at == piece_end && piece < place.pieces.size()) {
      piece_end += place.pieces[piece++].count;
      ended |= !config_.megatron(); // there only an id ends a document
    }
    if (ended) {
      begin = at;
      ++segment;
    }
    rows.positions[at] = static_cast<int64_t>(at - begin);
    rows.segments[at] = segment;
    ended = eod_ && ids[at] == *eod_;
    if (ended && config_.mask_eod_loss && at < seq) {
      rows.loss_mask[at] = 0;
    }
    if (at > 0 && counts[at] == 0) {
      rows.loss_mask[at - 1] = 0;
    }
    if (at >= end || (config_.megatron() && ids[at] == pad_)) {
      ids[at] = 0;
      if (at > 0) {
        rows.loss_mask[at - 1] = 0;
      }
    }
  }
  rows.labels.assign(ids.begin() + 1, ids.end());
  ids.pop_back();
  rows.tokens = std::move(ids);
  rows.positions.pop_back();
  rows.segments.pop_back();
  return rows;
}

/// Each piece with its own labels, one token less than it has, and nothing behind the last.
IndexedCorpus::Rows IndexedCorpus::document_rows(const Mixture::Place& place) const {
  const auto seq = static_cast<size_t>(args_.seq_length);
  const int64_t pad = std::max<int64_t>(pad_, 0);
  Rows rows;
  rows.tokens.assign(seq, pad);
  rows.labels.assign(seq, pad);
  rows.positions.resize(seq);
  rows.segments.resize(seq);
  rows.loss_mask.assign(seq, 0.0F);
  Ids ids, counts;
  size_t at = 0;
  int64_t segment = 0;
  for (const DocumentRange& piece : place.pieces) {
    read_piece(place, piece, ids, counts);
    change_ids(place, static_cast<uint64_t>(segment), ids, counts);
    for (size_t i = 0; i + 1 < ids.size(); ++i, ++at) {
      const bool ended = config_.mask_eod_loss && ids[i] == *eod_;
      rows.tokens[at] = ids[i];
      rows.labels[at] = ids[i + 1];
      rows.loss_mask[at] = counts[i + 1] != 0 && !ended ? 1.0F : 0.0F;
      rows.positions[at] = static_cast<int64_t>(i);
      rows.segments[at] = segment;
    }
    ++segment;
  }
  for (int64_t position = 0; at < seq; ++at) {
    rows.positions[at] = position++;
    rows.segments[at] = segment;
  }
  return rows;
}

std::vector<std::string> IndexedCorpus::details() const {
  const Mixture& train = splits_[static_cast<size_t>(Split::train)];
  const auto samples = static_cast<uint64_t>(args_.wanted[static_cast<size_t>(Split::train)]);
  std::vector<std::string> lines;
  if (train.members().size() < 2 || samples == 0) {
    return lines;
  }
  const std::vector<double> expected = train.expected(samples);
  for (size_t i = 0; i < expected.size(); ++i) {
    const Member& member = train.members()[i];
    const double tokens = expected[i] * member.sample_tokens;
    std::array<char, 64> epochs{};
    std::snprintf(
        epochs.data(), epochs.size(), "%.3g", tokens / static_cast<double>(member.tokens)
    );
    lines.push_back(
        member.name + ": " + thousands(static_cast<uint64_t>(std::llround(tokens))) +
        " tokens expected, " + epochs.data() + " epochs"
    );
  }
  return lines;
}

std::string IndexedCorpus::summary() const {
  uint64_t documents = 0, tokens = 0;
  for (const IndexedDataset& dataset : datasets_) {
    documents += dataset.sequences();
    tokens += dataset.tokens();
  }
  std::array<uint64_t, 3> in_split{};
  std::array<double, 3> asked = args_.split;
  for (size_t split = 0; split < in_split.size(); ++split) {
    for (const Member& member : splits_[split].members()) {
      in_split[split] += member.tokens;
      asked[split] = 1;
    }
  }
  const std::string several =
      datasets_.size() == 1 ? "" : std::to_string(datasets_.size()) + " corpora, ";
  return std::string("indexed") + (config_.megatron() ? " in Megatron's order: " : ": ") + several +
         documents_text(documents) + ", " + thousands(tokens) + " tokens (" +
         describe_splits(in_split, asked) + ")";
}

} // namespace mh::indexed
