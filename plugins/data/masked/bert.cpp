#include "bert.hpp"

#include "../corpus_text.hpp"

#include <megahost/error.hpp>
#include <megahost/tokenizer.hpp>

#include <algorithm>
#include <cmath>
#include <optional>

namespace mh::masked {
namespace {

/// [CLS] and two [SEP].
constexpr int64_t kAdded = 3;

int64_t require(const std::optional<int32_t>& id, const char* name) {
  if (!id) {
    throw Error(
        std::string("the corpus bert needs the special token ") + name +
            ", which the tokenizer does not have",
        "use a tokenizer of BERT, such as wordpiece, or tokenizer = { use = \"byte\", special = "
        "true }",
        exit_code::recipe
    );
  }
  return *id;
}

/// Takes tokens away, at either end of the longer one, until both have room together.
template <class AtFront>
void shorten(
    std::vector<int64_t>& a, std::vector<int64_t>& b, size_t most, const AtFront& at_front
) {
  while (a.size() + b.size() > most) {
    auto& longer = a.size() > b.size() ? a : b;
    if (at_front()) {
      longer.erase(longer.begin());
    } else {
      longer.pop_back();
    }
  }
}

} // namespace

void BertCorpus::fields(Fields<Config>& f) {
  samples_fields(f);
  f.add(
       "pair",
       &Config::pair,
       "what the second passage is: order: what follows the first, half of the time both are "
       "swapped; next: what follows, half of the time from elsewhere; none: there is one passage"
  )
      .one_of({"order", "next", "none"});
  f.add("mask_prob", &Config::mask_prob, "share of the tokens that are to be found")
      .unit("probability")
      .above(0)
      .below(1);
  f.add("whole_words", &Config::whole_words, "hide all tokens of a word or none");
  f.add("max_ngram", &Config::max_ngram, "hide up to so many words in a row; n with share 1 / n")
      .range(1, 16);
  f.add("short_seq_prob", &Config::short_seq_prob, "share of samples that are shorter on purpose")
      .unit("probability")
      .at_least(0)
      .at_most(1);
  f.check("pair", [](const Config& config) -> std::string {
    return config.megatron() && config.pair == "next"
               ? "Megatron's second passages follow the first ones: choose order or none"
               : "";
  });
}

std::vector<ArraySpec> BertCorpus::arrays(const Config& config, const Args& args) {
  using enum ArraySpec::Type;
  auto arrays = decoder_arrays(args.seq_length);
  std::ranges::find(arrays, "loss_mask", &ArraySpec::name)->share = config.mask_prob;
  for (const char* name : {"token_types", "segments", "order_labels"}) {
    arrays.push_back({name, int64, axis::seq, args.seq_length});
  }
  arrays.push_back({"order_loss_mask", float32, axis::seq, args.seq_length});
  return arrays;
}

BertCorpus::BertCorpus(const Config& config, const Args& args)
    : config_(config)
    , args_(args) {
  if (args.seq_length < kAdded + 2) {
    throw Error(
        "model.seq_length " + std::to_string(args.seq_length) +
            " has no room for two passages, [CLS] and two [SEP]",
        "raise it to 5 at least",
        exit_code::recipe
    );
  }
  const SpecialIds ids = args.tokenizer->special_ids();
  cls_ = require(ids.cls, "[CLS]");
  sep_ = require(ids.sep, "[SEP]");
  mask_ = require(ids.mask, "[MASK]");
  pad_ = ids.pad.value_or(0);
  special_.resize(static_cast<size_t>(args.vocab));
  for (const auto& id : {ids.bos, ids.eos, ids.pad, ids.unk, ids.mask, ids.cls, ids.sep}) {
    if (id && *id >= args.vocab) {
      throw Error(
          "the tokenizer's special token " + std::to_string(*id) +
              " lies outside the model's vocabulary of " + std::to_string(args.vocab),
          "raise model.vocab, or use the tokenizer that belongs to the model",
          exit_code::data
      );
    }
    if (id && id != ids.unk) {
      special_[static_cast<size_t>(*id)] = true;
    }
  }
  if (config.megatron()) {
    if (pad_ != 0) {
      throw Error(
          "Megatron takes the mask of padding for 0 where [PAD] is 0, and it is " +
              std::to_string(pad_) + " in the tokenizer",
          "use a tokenizer whose first token is [PAD], or data.order = \"megahost\"",
          exit_code::recipe
      );
    }
    megatron_.emplace(
        config,
        args,
        SentenceTerms{
            .longest = args.seq_length - kAdded,
            .fewest = config.pair == "none" ? 1 : 2,
            .short_prob = config.short_seq_prob}
    );
    masks_.emplace(
        *args.tokenizer,
        args.vocab,
        MegatronMasking{
            .prob = config.mask_prob,
            .whole_words = config.whole_words,
            .max_ngram = config.max_ngram}
    );
    return;
  }
  passages_.emplace(config, args);
  words_.emplace(*args.tokenizer, args.vocab, !config.whole_words);
  const auto most = static_cast<uint64_t>(args.seq_length - kAdded);
  for (const Split split : {Split::train, Split::valid, Split::test}) {
    passages_by_split_[static_cast<size_t>(split)] =
        passages_->cut(split, /*across=*/false, [&](uint64_t number) {
          Draws draws(number);
          return draws.happens(config.short_seq_prob) ? 2 + draws.below(most - 1) : most;
        });
  }
  if (args.split[0] > 0 && passages(Split::train).empty()) {
    refuse_empty(Split::train, args_, passages_->found());
  }
}

int64_t BertCorpus::size(Split split) const {
  return megatron_ ? megatron_->size(split) : static_cast<int64_t>(passages(split).size());
}

Corpus::Evaluation BertCorpus::evaluation() const {
  return megatron_ ? Evaluation::onward : Evaluation::same;
}

/// A passage cut in two where a sequence begins; somewhere, if it has only one.
std::pair<BertCorpus::Ids, BertCorpus::Ids>
BertCorpus::halves(const Passage& passage, Draws& draws) const {
  std::vector<size_t> begins;
  const Ids ids = passages_->read(passage, &begins);
  const size_t pivot =
      begins.empty() ? 1 + draws.below(ids.size() - 1) : begins[draws.below(begins.size())];
  const auto middle = ids.begin() + static_cast<ptrdiff_t>(pivot);
  return {{ids.begin(), middle}, {middle, ids.end()}};
}

BertCorpus::Pair BertCorpus::pair(Split split, uint64_t number, Draws& draws) const {
  const auto& all = passages(split);
  if (config_.pair == "none") {
    return {passages_->read(all[number]), {}};
  }
  auto [first, second] = halves(all[number], draws);
  const bool apart = draws.happens(0.5);
  if (apart && config_.pair == "order") {
    std::swap(first, second);
  } else if (apart) { // any other passage's second half
    const uint64_t step = all.size() == 1 ? 0 : 1 + draws.below(all.size() - 1);
    second = halves(all[(number + step) % all.size()], draws).second;
  }
  shorten(first, second, static_cast<size_t>(args_.seq_length - kAdded), [&] {
    return draws.happens(0.5);
  });
  return {std::move(first), std::move(second), apart};
}

/// [MASK] in 8 of 10 cases, any token in 1, and the same in 1.
int64_t BertCorpus::hidden_as(int64_t id, Draws& draws) const {
  const double draw = draws.uniform();
  if (draw < 0.8) {
    return mask_;
  }
  if (draw >= 0.9) {
    return id;
  }
  const auto ordinary = static_cast<uint64_t>(std::min(args_.tokenizer->vocab(), args_.vocab));
  auto other = static_cast<int64_t>(draws.below(ordinary));
  while (special_[static_cast<size_t>(other)]) {
    other = (other + 1) % static_cast<int64_t>(ordinary);
  }
  return other;
}

/// Hides words in random order until the share is reached.
void BertCorpus::hide(Ids& tokens, std::vector<float>& ret_mask, Draws& draws) const {
  std::vector<std::pair<size_t, size_t>> words; // where each begins and ends
  const std::vector<size_t> begins = words_->begins(tokens);
  size_t ordinary = 0;
  for (size_t i = 0; i < begins.size(); ++i) {
    const size_t end = i + 1 < begins.size() ? begins[i + 1] : tokens.size();
    if (!special_[static_cast<size_t>(tokens[begins[i]])]) {
      words.emplace_back(begins[i], end);
      ordinary += end - begins[i];
    }
  }
  const auto most = static_cast<size_t>(
      std::max(1.0, std::round(static_cast<double>(ordinary) * config_.mask_prob))
  );
  std::vector<double> sums; // sums of 1 / n
  for (int64_t n = 1; n <= config_.max_ngram; ++n) {
    sums.push_back((sums.empty() ? 0.0 : sums.back()) + 1.0 / static_cast<double>(n));
  }
  size_t hidden = 0;
  for (const uint64_t start : draws.choose(words.size(), std::max<size_t>(words.size(), 1))) {
    if (hidden >= most) {
      break;
    }
    const double draw = draws.uniform() * sums.back();
    auto n = static_cast<size_t>(std::ranges::upper_bound(sums, draw) - sums.begin()) + 1;
    for (n = std::min(n, words.size() - start); n > 0; --n) {
      const auto [begin, first_end] = words[start];
      const size_t end = words[start + n - 1].second;
      const bool in_row = end - begin <= most - hidden &&
                          std::all_of(
                              words.begin() + static_cast<ptrdiff_t>(start),
                              words.begin() + static_cast<ptrdiff_t>(start + n - 1),
                              [&](const auto& word) {
                                return (&word)[1].first == word.second; // no [SEP] between
                              }
                          );
      const bool fresh = std::all_of(
          ret_mask.begin() + static_cast<ptrdiff_t>(begin),
          ret_mask.begin() + static_cast<ptrdiff_t>(end),
          [](float mask) { return mask == 0; }
      );
      if (in_row && fresh) {
        for (size_t i = begin; i < end; ++i) {
          tokens[i] = hidden_as(tokens[i], draws);
          ret_mask[i] = 1;
        }
        hidden += end - begin;
        break;
      }
    }
  }
}

BertCorpus::Masked BertCorpus::joined(const Pair& pair) const {
  Masked all;
  all.labels.push_back(cls_);
  all.labels.insert(all.labels.end(), pair.first.begin(), pair.first.end());
  all.labels.push_back(sep_);
  all.second = all.labels.size();
  if (!pair.second.empty()) {
    all.labels.insert(all.labels.end(), pair.second.begin(), pair.second.end());
    all.labels.push_back(sep_);
  }
  all.tokens = all.labels;
  all.mask.resize(all.labels.size());
  all.apart = pair.apart;
  return all;
}

BertCorpus::Masked BertCorpus::own_sample(Split split, int64_t index) const {
  const auto count = static_cast<uint64_t>(size(split));
  if (count == 0) {
    refuse_empty(split, args_, passages_->found());
  }
  auto [number, draws] = turn_of(split, args_.seed, static_cast<uint64_t>(index), count);
  Masked all = joined(pair(split, number, draws));
  hide(all.tokens, all.mask, draws);
  return all;
}

/// A random token may be any of the vocabulary's file, special ones too, and no sentinel.
///
/// Source:  megatron-core 0.16.1, bert_dataset.py, __getitem__ and _get_token_mask
BertCorpus::Masked BertCorpus::megatron_sample(Split split, int64_t index) const {
  MegatronSamples::Sentences drawn = megatron_->sample(split, index);
  indexed::RandomState& random = drawn.random;
  size_t pivot = drawn.ids.size();
  Pair both;
  if (config_.pair != "none") {
    pivot = drawn.ids.size() < 3 ? 1 : 1 + random.below(drawn.ids.size() - 1);
    both.apart = random.uniform() < 0.5;
  }
  for (size_t i = 0; i < drawn.ids.size(); ++i) {
    Ids& half = (i < pivot) != both.apart ? both.first : both.second;
    half.insert(half.end(), drawn.ids[i].begin(), drawn.ids[i].end());
  }
  shorten(both.first, both.second, static_cast<size_t>(drawn.target), [&] {
    return random.uniform() < 0.5;
  });
  Masked all = joined(both);
  const uint64_t vocab =
      static_cast<uint64_t>(args_.tokenizer->vocab()) - args_.tokenizer->special_ids().extra.size();
  const auto spans = masks_->hide(all.tokens, drawn.target, random, [&](int64_t id) {
    if (random.uniform() < 0.8) {
      return mask_;
    }
    return random.uniform() >= 0.5 ? static_cast<int64_t>(random.below(vocab)) : id;
  });
  for (const auto& span : spans) {
    for (const size_t place : span) {
      all.mask[place] = 1;
    }
  }
  return all;
}

Sample BertCorpus::sample(Split split, int64_t index) const {
  auto [labels, tokens, mask, second, apart] =
      megatron_ ? megatron_sample(split, index) : own_sample(split, index);
  const auto length = static_cast<size_t>(args_.seq_length);
  Ids types(length), segments(length, 1), order_labels(length);
  for (size_t i = 0; i < tokens.size(); ++i) { // Megatron takes any [PAD] for padding
    segments[i] = megatron_ && tokens[i] == pad_ ? 1 : 0;
    types[i] = i < second ? 0 : 1;
  }
  std::vector<float> order_mask(length);
  tokens.resize(length, pad_);
  labels.resize(length, pad_);
  mask.resize(length);
  order_labels[0] = apart ? 1 : 0;
  order_mask[0] = config_.pair == "none" ? 0 : 1;
  return {
      {"tokens", std::move(tokens)},
      {"labels", std::move(labels)},
      {"loss_mask", std::move(mask)},
      {"token_types", std::move(types)},
      {"segments", std::move(segments)},
      {"order_labels", std::move(order_labels)},
      {"order_loss_mask", std::move(order_mask)}};
}

std::string BertCorpus::summary() const {
  return "bert" + (megatron_ ? " " + megatron_->found() : ": " + passages_->found()) + ", " +
         thousands(static_cast<uint64_t>(size(Split::train))) + " samples of train";
}

} // namespace mh::masked
