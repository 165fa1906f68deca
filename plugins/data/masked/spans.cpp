#include "spans.hpp"

#include "../corpus_text.hpp"

#include <megahost/error.hpp>
#include <megahost/tokenizer.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace mh::masked {
namespace {

constexpr const char* kEncoder = "encoder";

int64_t encoder_length(const Corpus::Args& args) {
  const auto found = args.sequences.find(kEncoder);
  if (found == args.sequences.end()) {
    throw Error(
        "the corpus t5 gives an encoder's tokens, but the model has no encoder",
        "choose an encoder-decoder, such as model.use = \"t5\", or another corpus",
        exit_code::recipe
    );
  }
  return found->second;
}

SpanSizes sizes_of(int64_t text, double noise, double mean_span) {
  SpanSizes sizes{.text = text};
  sizes.hidden = std::clamp<int64_t>(
      std::llround(static_cast<double>(text) * noise), 1, std::max<int64_t>(text - 1, 1)
  );
  sizes.spans = std::clamp<int64_t>(
      std::llround(static_cast<double>(sizes.hidden) / mean_span),
      1,
      std::max<int64_t>(std::min(sizes.hidden, text - sizes.hidden), 1)
  );
  return sizes;
}

/// `total` in so many random parts of at least 1.
std::vector<int64_t> parts_of(int64_t total, int64_t parts, Draws& draws) {
  const auto places = static_cast<uint64_t>(total - 1);
  std::vector<uint64_t> cuts =
      draws.choose(static_cast<uint64_t>(parts - 1), std::max<uint64_t>(places, 1));
  std::ranges::sort(cuts);
  std::vector<int64_t> sizes;
  int64_t begin = 0;
  for (const uint64_t cut : cuts) {
    const auto end = static_cast<int64_t>(cut) + 1;
    sizes.push_back(end - begin);
    begin = end;
  }
  sizes.push_back(total - begin);
  return sizes;
}

} // namespace

SpanSizes span_sizes(int64_t encoder_length, double noise, double mean_span) {
  int64_t text = 2;
  while (sizes_of(text + 1, noise, mean_span).encoder() <= encoder_length) {
    ++text;
  }
  return sizes_of(text, noise, mean_span);
}

void SpanCorpus::fields(Fields<Config>& f) {
  samples_fields(f);
  f.add("mask_prob", &Config::mask_prob, "share of the tokens that lie in spans")
      .unit("probability")
      .above(0)
      .at_most(0.5);
  f.add("mean_span", &Config::mean_span, "tokens of a span, on average").at_least(1);
  f.add(
      "whole_words",
      &Config::whole_words,
      "Megatron's order: a span has all tokens of a word or none"
  );
  f.add(
       "max_ngram",
       &Config::max_ngram,
       "Megatron's order: most words of a span, whose number is geometric with 0.2"
  )
      .range(1, 100);
  f.add(
       "short_seq_prob",
       &Config::short_seq_prob,
       "Megatron's order: share of samples that are shorter on purpose"
  )
      .unit("probability")
      .at_least(0)
      .at_most(1);
  f.check("mean_span", [](const Config& c) -> std::string {
    const Config usual;
    return c.megatron() && c.mean_span != usual.mean_span
               ? "Megatron's spans have the lengths that max_ngram says: leave mean_span out"
               : "";
  });
  f.check("max_ngram", [](const Config& c) -> std::string {
    const Config usual;
    return !c.megatron() && (c.max_ngram != usual.max_ngram || c.whole_words != usual.whole_words ||
                             c.short_seq_prob != usual.short_seq_prob)
               ? "max_ngram, whole_words and short_seq_prob are of the order \"megatron\"; the "
                 "length of spans is mean_span"
               : "";
  });
}

std::vector<ArraySpec> SpanCorpus::arrays(const Config&, const Args& args) {
  using enum ArraySpec::Type;
  const int64_t length = encoder_length(args);
  auto arrays = decoder_arrays(args.seq_length);
  arrays.push_back({"segments", int64, axis::seq, args.seq_length});
  for (const char* name : {"encoder_tokens", "encoder_segments"}) {
    arrays.push_back({name, int64, axis::seq, length, kEncoder});
  }
  return arrays;
}

SpanCorpus::SpanCorpus(const Config& config, const Args& args)
    : config_(config)
    , args_(args)
    , encoder_length_(encoder_length(args)) {
  const SpecialIds ids = args.tokenizer->special_ids();
  const auto end = ids.eos ? ids.eos : args.tokenizer->end_of_document();
  if (!end) {
    throw Error(
        "the corpus t5 ends sequences with an end of the sequence, and the tokenizer has none",
        "use a tokenizer of T5, or tokenizer = { use = \"byte\", special = true, extra_ids = 100 }",
        exit_code::recipe
    );
  }
  end_ = *end;
  pad_ = ids.pad.value_or(0);
  start_ = pad_;
  sentinels_.assign(ids.extra.begin(), ids.extra.end());
  if (config.megatron()) {
    prepare_megatron(ids);
  } else {
    prepare_own();
  }
  int64_t largest = std::max({start_, end_, pad_, *std::ranges::max_element(sentinels_)});
  if (largest >= args.vocab) {
    throw Error(
        "the tokenizer's special token " + std::to_string(largest) +
            " lies outside the model's vocabulary of " + std::to_string(args.vocab),
        "raise model.vocab, or use the tokenizer that belongs to the model",
        exit_code::data
    );
  }
}

void SpanCorpus::prepare_own() {
  sizes_ = span_sizes(encoder_length_, config_.mask_prob, config_.mean_span);
  if (encoder_length_ < sizes_.encoder() || args_.seq_length < sizes_.decoder()) {
    const bool encoder = encoder_length_ < sizes_.encoder();
    throw Error(
        encoder ? "model.encoder_length " + std::to_string(encoder_length_) +
                      " has no room for a token, a sentinel and an end"
                : "texts of " + std::to_string(sizes_.text) + " tokens fill model.encoder_length " +
                      std::to_string(encoder_length_) + ", and their spans need " +
                      std::to_string(sizes_.decoder()) + " tokens of the decoder, which reads " +
                      std::to_string(args_.seq_length),
        encoder ? "raise it to 3 at least"
                : "raise model.seq_length to " + std::to_string(sizes_.decoder()) +
                      ", or lower data.mask_prob or model.encoder_length",
        exit_code::recipe
    );
  }
  if (std::ssize(sentinels_) < sizes_.spans) {
    throw Error(
        "texts of " + std::to_string(sizes_.text) + " tokens have " + std::to_string(sizes_.spans) +
            " spans, and the tokenizer has " + std::to_string(sentinels_.size()) +
            " sentinels (<extra_id_0>, ...) to stand for them",
        "set tokenizer.extra_ids where the tokenizer has it, raise data.mean_span, or lower "
        "model.encoder_length",
        exit_code::recipe
    );
  }
  sentinels_.resize(static_cast<size_t>(sizes_.spans));
  passages_.emplace(config_, args_);
  for (const Split split : {Split::train, Split::valid, Split::test}) {
    passages_by_split_[static_cast<size_t>(split)] =
        passages_->cut(split, /*across=*/true, [&](uint64_t) {
          return static_cast<uint64_t>(sizes_.text);
        });
  }
  if (args_.split[0] > 0 && passages_by_split_[0].empty()) {
    refuse_empty(Split::train, args_, passages_->found());
  }
}

void SpanCorpus::prepare_megatron(const SpecialIds& ids) {
  const auto start = ids.bos ? ids.bos : ids.cls; // the latter of BERT's vocabularies
  if (!start || sentinels_.empty() || encoder_length_ < 4) {
    throw Error(
        encoder_length_ < 4 ? "model.encoder_length " + std::to_string(encoder_length_) +
                                  " has no room for Megatron's samples of 2 tokens or more"
        : start ? "the tokenizer has no sentinels (<extra_id_0>, ...) to stand for spans"
                : "Megatron's decoder begins with the beginning of a sequence, and the tokenizer "
                  "has none",
        encoder_length_ < 4 ? "raise it to 4 at least"
                            : "use the tokenizer that the run of Megatron had",
        exit_code::recipe
    );
  }
  start_ = *start;
  pad_ = 0; // as there, whatever the tokenizer's is
  megatron_.emplace(
      config_,
      args_,
      SentenceTerms{.longest = encoder_length_ - 2, .short_prob = config_.short_seq_prob}
  );
  masks_.emplace(
      *args_.tokenizer,
      args_.vocab,
      MegatronMasking{
          .prob = config_.mask_prob,
          .whole_words = config_.whole_words,
          .max_ngram = config_.max_ngram,
          .geometric = true}
  );
}

Corpus::Evaluation SpanCorpus::evaluation() const {
  return megatron_ ? Evaluation::onward : Evaluation::same;
}

int64_t SpanCorpus::size(Split split) const {
  return megatron_ ? megatron_->size(split)
                   : std::ssize(passages_by_split_[static_cast<size_t>(split)]);
}

SpanCorpus::Texts SpanCorpus::own_texts(Split split, int64_t index) const {
  const auto count = static_cast<uint64_t>(size(split));
  if (count == 0) {
    refuse_empty(split, args_, passages_->found());
  }
  auto [number, draws] = turn_of(split, args_.seed, static_cast<uint64_t>(index), count);
  const Ids text = passages_->read(passages_by_split_[static_cast<size_t>(split)][number]);
  const auto kept = parts_of(sizes_.text - sizes_.hidden, sizes_.spans, draws);
  const auto hidden = parts_of(sizes_.hidden, sizes_.spans, draws);

  Texts texts;
  auto next = text.begin();
  for (size_t span = 0; span < sentinels_.size(); ++span) {
    texts.encoder.insert(texts.encoder.end(), next, next + kept[span]);
    next += kept[span];
    texts.encoder.push_back(sentinels_[span]);
    texts.labels.push_back(sentinels_[span]);
    texts.labels.insert(texts.labels.end(), next, next + hidden[span]);
    next += hidden[span];
  }
  texts.encoder.push_back(end_);
  texts.labels.push_back(end_);
  return texts;
}

/// Source:  megatron-core 0.16.1, t5_dataset.py, __getitem__
SpanCorpus::Texts SpanCorpus::megatron_texts(Split split, int64_t index) const {
  MegatronSamples::Sentences drawn = megatron_->sample(split, index);
  Ids text;
  for (const Ids& sentence : drawn.ids) {
    text.insert(text.end(), sentence.begin(), sentence.end());
  }
  text.resize(std::min(text.size(), static_cast<size_t>(drawn.target)));
  const auto as_it_is = [](int64_t id) { return id; }; // a sentinel will stand for all of a span
  const auto spans = masks_->hide(text, drawn.target, drawn.random, as_it_is);
  Texts texts;
  size_t next = 0;
  const auto keep_until = [&](size_t end) {
    for (; next < end; ++next) {
      texts.encoder.push_back(text[next]);
    }
  };
  for (size_t i = 0; i < std::min(spans.size(), sentinels_.size()); ++i) {
    keep_until(spans[i].front());
    texts.encoder.push_back(sentinels_[i]);
    texts.labels.push_back(sentinels_[i]);
    for (const size_t place : spans[i]) {
      texts.labels.push_back(text[place]);
    }
    next = spans[i].back() + 1;
  }
  keep_until(text.size());
  texts.labels.push_back(end_);
  if (spans.size() > sentinels_.size() || std::ssize(texts.labels) > args_.seq_length) {
    throw Error(
        "sample " + std::to_string(index) + " of Megatron's order has " +
            std::to_string(spans.size()) + " spans, which need as many sentinels and " +
            std::to_string(texts.labels.size()) + " tokens of the decoder; there are " +
            std::to_string(sentinels_.size()) + " and " + std::to_string(args_.seq_length) +
            ": Megatron would end here, too",
        "raise tokenizer.extra_ids or model.seq_length, or lower data.mask_prob",
        exit_code::data
    );
  }
  return texts;
}

Sample SpanCorpus::sample(Split split, int64_t index) const {
  auto [encoder, labels] = megatron_ ? megatron_texts(split, index) : own_texts(split, index);
  const auto length = static_cast<size_t>(args_.seq_length);
  const auto read = static_cast<size_t>(encoder_length_);
  Ids encoder_segments(encoder.size());
  encoder_segments.resize(read, 1);
  encoder.resize(read, pad_);
  Ids tokens{start_};
  tokens.insert(tokens.end(), labels.begin(), labels.end() - 1);
  std::vector<float> mask(labels.size(), 1);
  tokens.resize(length, pad_);
  labels.resize(length, pad_);
  mask.resize(length);
  return {
      {"tokens", std::move(tokens)},
      {"labels", std::move(labels)},
      {"loss_mask", std::move(mask)},
      {"segments", Ids(length)},
      {"encoder_tokens", std::move(encoder)},
      {"encoder_segments", std::move(encoder_segments)}};
}

std::string SpanCorpus::summary() const {
  const std::string samples =
      ", " + thousands(static_cast<uint64_t>(size(Split::train))) + " samples of train";
  return megatron_
             ? "t5 " + megatron_->found() + samples
             : "t5: " + passages_->found() + samples + ", each of " + std::to_string(sizes_.text) +
                   " tokens with " + std::to_string(sizes_.hidden) + " in " +
                   std::to_string(sizes_.spans) + " spans";
}

} // namespace mh::masked
