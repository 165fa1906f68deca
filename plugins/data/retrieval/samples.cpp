#include "samples.hpp"

#include <megahost/error.hpp>
#include <megahost/shuffle.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace mh::retrieval {
namespace {

constexpr const char* kQuery = "query";

/// [CLS] and [SEP].
constexpr size_t kAdded = 2;

std::string negative_name(size_t number) {
  return "negative" + std::to_string(number);
}

int64_t query_length(const Corpus::Args& args) {
  const auto found = args.sequences.find(kQuery);
  if (found == args.sequences.end()) {
    throw Error(
        "this corpus gives pairs of a query and a context, and the model reads no query",
        "choose model.use = \"retriever\", or another corpus",
        exit_code::recipe
    );
  }
  return found->second;
}

size_t count_negatives(const Corpus::Args& args) {
  size_t count = 0;
  while (args.sequences.contains(negative_name(count + 1))) {
    ++count;
  }
  return count;
}

int64_t require(const std::optional<int32_t>& id, const char* name, std::string_view corpus) {
  if (!id) {
    throw Error(
        "the corpus " + std::string(corpus) + " needs the special token " + name +
            ", which the tokenizer does not have",
        "use a tokenizer of BERT, such as wordpiece, or tokenizer = { use = \"byte\", special = "
        "true }",
        exit_code::recipe
    );
  }
  return *id;
}

} // namespace

std::vector<ArraySpec> Samples::arrays(const Corpus::Args& args) {
  using enum ArraySpec::Type;
  const auto contexts = static_cast<int64_t>(1 + count_negatives(args));
  std::vector<ArraySpec> arrays{
      {"tokens", int64, axis::seq, args.seq_length},
      {"segments", int64, axis::seq, args.seq_length},
      {"query_tokens", int64, axis::seq, query_length(args), kQuery},
      {"query_segments", int64, axis::seq, query_length(args), kQuery},
      {"labels", int64, {"contexts"}, contexts},
      {"pair_mask", float32, axis::batch, 1}};
  for (int64_t i = 1; i < contexts; ++i) {
    const std::string name = negative_name(static_cast<size_t>(i));
    for (const char* array : {"_tokens", "_segments"}) {
      arrays.push_back({name + array, int64, axis::seq, args.sequences.at(name), name});
    }
  }
  if (contexts > 1) {
    arrays.push_back({"negative_mask", float32, {"negatives"}, contexts - 1});
  }
  return arrays;
}

Samples::Samples(const Corpus::Args& args, std::string_view corpus)
    : args_(args)
    , query_length_(query_length(args))
    , negatives_(count_negatives(args)) {
  MH_ASSERT(args.tokenizer != nullptr, "a corpus of texts needs a tokenizer");
  const SpecialIds ids = args.tokenizer->special_ids();
  cls_ = require(ids.cls, "[CLS]", corpus);
  sep_ = require(ids.sep, "[SEP]", corpus);
  pad_ = ids.pad.value_or(0);
  if (const int64_t largest = std::max({cls_, sep_, pad_}); largest >= args.vocab) {
    throw Error(
        "the tokenizer's special token " + std::to_string(largest) +
            " lies outside the model's vocabulary of " + std::to_string(args.vocab),
        "raise model.vocab, or use the tokenizer that belongs to the model",
        exit_code::data
    );
  }
  if (std::min(args.seq_length, query_length_) < static_cast<int64_t>(kAdded) + 1) {
    throw Error(
        "texts of " + std::to_string(std::min(args.seq_length, query_length_)) +
            " tokens have no room for [CLS], a token and [SEP]",
        "raise model.seq_length and model.query_length to 3 at least",
        exit_code::recipe
    );
  }
}

uint64_t Samples::room(size_t title) const {
  const size_t taken = kAdded + (title == 0 ? 0 : title + 1);
  const auto length = static_cast<size_t>(args_.seq_length);
  return length > taken ? length - taken : 0;
}

PairIds Samples::encode(std::string_view text) const {
  const std::vector<int32_t> all = args_.tokenizer->encode(text);
  PairIds ids(all.begin(), all.end());
  const SpecialIds special = args_.tokenizer->special_ids();
  if (!ids.empty() && (ids.front() == cls_ || ids.front() == special.bos)) {
    ids.erase(ids.begin());
  }
  if (!ids.empty() && (ids.back() == sep_ || ids.back() == special.eos)) {
    ids.pop_back();
  }
  for (const int64_t id : ids) {
    if (id < 0 || id >= args_.vocab) {
      throw Error(
          "the tokenizer gives the id " + std::to_string(id) + ", but the model has ids 0 to " +
              std::to_string(args_.vocab - 1),
          "raise model.vocab, or use the tokenizer that belongs to the model",
          exit_code::data
      );
    }
  }
  return ids;
}

/// [CLS], what there is room for, [SEP], padding; and the segments.
void Samples::add(Sample& ret_sample, const std::string& sequence, PairIds ids, int64_t length)
    const {
  const auto size = static_cast<size_t>(length);
  ids.resize(std::min(ids.size(), size - kAdded));
  ids.insert(ids.begin(), cls_);
  ids.push_back(sep_);
  PairIds segments(ids.size());
  segments.resize(size, 1);
  ids.resize(size, pad_);
  ret_sample.emplace(sequence + "tokens", std::move(ids));
  ret_sample.emplace(sequence + "segments", std::move(segments));
}

PairIds Samples::ids_of(const PairContext& context) const {
  PairIds ids = context.title;
  if (!ids.empty()) {
    ids.push_back(sep_);
  }
  ids.insert(ids.end(), context.text.begin(), context.text.end());
  return ids;
}

Sample Samples::sample(
    const PairIds& query, const PairContext& context, const std::vector<PairContext>& negatives
) const {
  Sample sample;
  add(sample, "query_", query, query_length_);
  add(sample, "", ids_of(context), args_.seq_length);
  PairIds labels{context.number};
  std::vector<float> there;
  for (size_t i = 0; i < negatives_; ++i) {
    const bool given = i < negatives.size();
    const std::string name = negative_name(i + 1);
    add(sample, name + "_", given ? ids_of(negatives[i]) : PairIds(), args_.sequences.at(name));
    labels.push_back(given ? negatives[i].number : 0);
    there.push_back(given ? 1 : 0);
  }
  sample.emplace("labels", std::move(labels));
  sample.emplace("pair_mask", std::vector<float>{1});
  if (negatives_ > 0) {
    sample.emplace("negative_mask", std::move(there));
  }
  return sample;
}

int64_t number_of(std::string_view text) {
  return static_cast<int64_t>(hash_text(text) >> 1);
}

std::array<uint64_t, 3> split_ends(const std::array<double, 3>& shares, uint64_t count) {
  std::array<uint64_t, 3> ends{};
  double share = 0;
  for (size_t split = 0; split < ends.size(); ++split) {
    share += shares[split];
    ends[split] =
        std::min(count, static_cast<uint64_t>(std::llround(share * static_cast<double>(count))));
  }
  return ends;
}

} // namespace mh::retrieval
