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
  passages_fields(f);
  f.add("mask_prob", &Config::mask_prob, "share of the tokens that lie in spans")
      .unit("probability")
      .above(0)
      .at_most(0.5);
  f.add("mean_span", &Config::mean_span, "tokens of a span, on average").at_least(1);
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
    , encoder_length_(encoder_length(args))
    , sizes_(span_sizes(encoder_length_, config.mask_prob, config.mean_span))
    , passages_(config, args) {
  if (encoder_length_ < sizes_.encoder() || args.seq_length < sizes_.decoder()) {
    const bool encoder = encoder_length_ < sizes_.encoder();
    throw Error(
        encoder ? "model.encoder_length " + std::to_string(encoder_length_) +
                      " has no room for a token, a sentinel and an end"
                : "texts of " + std::to_string(sizes_.text) + " tokens fill model.encoder_length " +
                      std::to_string(encoder_length_) + ", and their spans need " +
                      std::to_string(sizes_.decoder()) + " tokens of the decoder, which reads " +
                      std::to_string(args.seq_length),
        encoder ? "raise it to 3 at least"
                : "raise model.seq_length to " + std::to_string(sizes_.decoder()) +
                      ", or lower data.mask_prob or model.encoder_length",
        exit_code::recipe
    );
  }
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
  if (std::ssize(ids.extra) < sizes_.spans) {
    throw Error(
        "texts of " + std::to_string(sizes_.text) + " tokens have " + std::to_string(sizes_.spans) +
            " spans, and the tokenizer has " + std::to_string(ids.extra.size()) +
            " sentinels (<extra_id_0>, ...) to stand for them",
        "set tokenizer.extra_ids where the tokenizer has it, raise data.mean_span, or lower "
        "model.encoder_length",
        exit_code::recipe
    );
  }
  sentinels_.assign(ids.extra.begin(), ids.extra.begin() + sizes_.spans);
  int64_t largest = std::max({end_, pad_, *std::ranges::max_element(sentinels_)});
  if (largest >= args.vocab) {
    throw Error(
        "the tokenizer's special token " + std::to_string(largest) +
            " lies outside the model's vocabulary of " + std::to_string(args.vocab),
        "raise model.vocab, or use the tokenizer that belongs to the model",
        exit_code::data
    );
  }
  for (const Split split : {Split::train, Split::valid, Split::test}) {
    passages_by_split_[static_cast<size_t>(split)] =
        passages_.cut(split, /*across=*/true, [&](uint64_t) {
          return static_cast<uint64_t>(sizes_.text);
        });
  }
  if (args.split[0] > 0 && passages_by_split_[0].empty()) {
    refuse_empty(Split::train, args_, passages_.found());
  }
}

int64_t SpanCorpus::size(Split split) const {
  return std::ssize(passages_by_split_[static_cast<size_t>(split)]);
}

Sample SpanCorpus::sample(Split split, int64_t index) const {
  const auto count = static_cast<uint64_t>(size(split));
  if (count == 0) {
    refuse_empty(split, args_, passages_.found());
  }
  auto [number, draws] = turn_of(split, args_.seed, static_cast<uint64_t>(index), count);
  const Ids text = passages_.read(passages_by_split_[static_cast<size_t>(split)][number]);
  const auto kept = parts_of(sizes_.text - sizes_.hidden, sizes_.spans, draws);
  const auto hidden = parts_of(sizes_.hidden, sizes_.spans, draws);

  Ids encoder, labels;
  auto next = text.begin();
  for (size_t span = 0; span < sentinels_.size(); ++span) {
    encoder.insert(encoder.end(), next, next + kept[span]);
    next += kept[span];
    encoder.push_back(sentinels_[span]);
    labels.push_back(sentinels_[span]);
    labels.insert(labels.end(), next, next + hidden[span]);
    next += hidden[span];
  }
  encoder.push_back(end_);
  labels.push_back(end_);

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
  return "t5: " + passages_.found() + ", " + thousands(static_cast<uint64_t>(size(Split::train))) +
         " samples of train, each of " + std::to_string(sizes_.text) + " tokens with " +
         std::to_string(sizes_.hidden) + " in " + std::to_string(sizes_.spans) + " spans";
}

} // namespace mh::masked
