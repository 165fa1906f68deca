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
void shorten(std::vector<int64_t>& a, std::vector<int64_t>& b, size_t most, Draws& draws) {
  while (a.size() + b.size() > most) {
    auto& longer = a.size() > b.size() ? a : b;
    if (draws.happens(0.5)) {
      longer.erase(longer.begin());
    } else {
      longer.pop_back();
    }
  }
}

} // namespace

void BertCorpus::fields(Fields<Config>& f) {
  passages_fields(f);
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
}

std::vector<ArraySpec> BertCorpus::arrays(const Config&, const Args& args) {
  using enum ArraySpec::Type;
  auto arrays = decoder_arrays(args.seq_length);
  for (const char* name : {"token_types", "segments", "order_labels"}) {
    arrays.push_back({name, int64, axis::seq, args.seq_length});
  }
  arrays.push_back({"order_loss_mask", float32, axis::seq, args.seq_length});
  return arrays;
}

BertCorpus::BertCorpus(const Config& config, const Args& args)
    : config_(config)
    , args_(args)
    , passages_(config, args)
    , words_(*args.tokenizer, args.vocab, !config.whole_words) {
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
  const auto most = static_cast<uint64_t>(args.seq_length - kAdded);
  for (const Split split : {Split::train, Split::valid, Split::test}) {
    passages_by_split_[static_cast<size_t>(split)] =
        passages_.cut(split, /*across=*/false, [&](uint64_t number) {
          Draws draws(number);
          return draws.happens(config.short_seq_prob) ? 2 + draws.below(most - 1) : most;
        });
  }
  if (args.split[0] > 0 && passages(Split::train).empty()) {
    refuse_empty(Split::train, args_, passages_.found());
  }
}

int64_t BertCorpus::size(Split split) const {
  return static_cast<int64_t>(passages(split).size());
}

/// A passage cut in two where a sequence begins; somewhere, if it has only one.
std::pair<BertCorpus::Ids, BertCorpus::Ids>
BertCorpus::halves(const Passage& passage, Draws& draws) const {
  std::vector<size_t> begins;
  const Ids ids = passages_.read(passage, &begins);
  const size_t pivot =
      begins.empty() ? 1 + draws.below(ids.size() - 1) : begins[draws.below(begins.size())];
  const auto middle = ids.begin() + static_cast<ptrdiff_t>(pivot);
  return {{ids.begin(), middle}, {middle, ids.end()}};
}

BertCorpus::Pair BertCorpus::pair(Split split, uint64_t number, Draws& draws) const {
  const auto& all = passages(split);
  if (config_.pair == "none") {
    return {passages_.read(all[number]), {}};
  }
  auto [first, second] = halves(all[number], draws);
  const bool apart = draws.happens(0.5);
  if (apart && config_.pair == "order") {
    std::swap(first, second);
  } else if (apart) { // any other passage's second half
    const uint64_t step = all.size() == 1 ? 0 : 1 + draws.below(all.size() - 1);
    second = halves(all[(number + step) % all.size()], draws).second;
  }
  shorten(first, second, static_cast<size_t>(args_.seq_length - kAdded), draws);
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
  const std::vector<size_t> begins = words_.begins(tokens);
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

Sample BertCorpus::sample(Split split, int64_t index) const {
  const auto count = static_cast<uint64_t>(size(split));
  if (count == 0) {
    refuse_empty(split, args_, passages_.found());
  }
  auto [number, draws] = turn_of(split, args_.seed, static_cast<uint64_t>(index), count);
  const Pair both = pair(split, number, draws);

  const auto length = static_cast<size_t>(args_.seq_length);
  Ids tokens{cls_}, types(length), segments(length, 1), order_labels(length);
  tokens.insert(tokens.end(), both.first.begin(), both.first.end());
  tokens.push_back(sep_);
  const size_t second = tokens.size();
  if (!both.second.empty()) {
    tokens.insert(tokens.end(), both.second.begin(), both.second.end());
    tokens.push_back(sep_);
  }
  std::fill_n(segments.begin(), tokens.size(), 0);
  std::fill_n(types.begin() + static_cast<ptrdiff_t>(second), tokens.size() - second, 1);
  Ids labels = tokens;
  std::vector<float> loss_mask(tokens.size()), order_mask(length);
  hide(tokens, loss_mask, draws);
  tokens.resize(length, pad_);
  labels.resize(length, pad_);
  loss_mask.resize(length);
  order_labels[0] = both.apart ? 1 : 0;
  order_mask[0] = config_.pair == "none" ? 0 : 1;
  return {
      {"tokens", std::move(tokens)},
      {"labels", std::move(labels)},
      {"loss_mask", std::move(loss_mask)},
      {"token_types", std::move(types)},
      {"segments", std::move(segments)},
      {"order_labels", std::move(order_labels)},
      {"order_loss_mask", std::move(order_mask)}};
}

std::string BertCorpus::summary() const {
  return "bert: " + passages_.found() + ", " +
         thousands(static_cast<uint64_t>(size(Split::train))) + " samples of train";
}

} // namespace mh::masked
