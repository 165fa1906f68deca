#include "core/session/generate.hpp"

#include "core/base/seconds.hpp"
#include "core/base/text.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/cache.hpp"
#include "megahost/random.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

namespace mh {
namespace {

using Ids = std::vector<int32_t>;

/// Reads tokens of one text.
class TextReader {
public:
  TextReader(const Session& session, const GenerateOptions& options)
      : session_(session)
      , options_(options) {}

  [[nodiscard]] int64_t length() const { return session_.recipe.model.seq_length; }

  /// Scores of what follows each token of a part of a text, which begins at `offset`: [part,
  /// vocab]; of the last alone if there is a cache to fill for more.
  [[nodiscard]] at::Tensor
  read(std::span<const int32_t> part, int64_t offset, KeyValueCache* cache, bool last) const {
    const auto device = session_.device->device();
    Batch batch;
    batch.seq = static_cast<int64_t>(part.size());
    batch.batch = 1;
    batch.samples = {0};
    batch.arrays["tokens"] = tokens(part);
    batch.arrays["token_index"] = at::arange(offset, offset + batch.seq, at::kLong).to(device);
    for (const auto& [name, ids] : options_.sequences) {
      batch.sequences[name] = static_cast<int64_t>(ids.size());
      batch.arrays[name + "_tokens"] = tokens(ids);
    }
    StepContext context(
        session_.mesh,
        session_.rules,
        batch,
        {.last_logits = last, .target = device.type(), .kv_cache = cache}
    );
    const State state = session_.model->forward(context);
    return state["logits"].value.select(1, 0).to(at::kCPU, at::kDouble);
  }

private:
  /// [ids, 1]
  [[nodiscard]] at::Tensor tokens(std::span<const int32_t> ids) const {
    return at::tensor(std::vector<int64_t>(ids.begin(), ids.end()), at::kLong)
        .unsqueeze(1)
        .to(session_.device->device());
  }

  const Session& session_;
  const GenerateOptions& options_;
};

/// The tokens so far that the model sees.
class Lookback {
public:
  Lookback(const TextReader& reader, bool cache)
      : reader_(reader)
      , length_(static_cast<size_t>(reader.length())) {
    if (cache) {
      cache_.emplace(reader.length());
    }
  }

  [[nodiscard]] bool cached() const { return cache_.has_value(); }

  /// Scores of the token after `ids`, which are those of the last call and one more: [vocab].
  at::Tensor next(const Ids& ids) {
    if (ids.size() - first_ > length_) {
      // A long prompt keeps as much as there is room for; later on half, so that it is read seldom.
      first_ = ids.size() - (first_ == 0 && read_ == 0 ? length_ : (length_ + 1) / 2);
      read_ = first_;
      if (cache_) {
        cache_->restart();
      }
    }
    const size_t begin = cache_ ? read_ : first_;
    const at::Tensor logits = reader_.read(
        std::span(ids).subspan(begin),
        static_cast<int64_t>(begin - first_),
        cache_ ? &*cache_ : nullptr,
        /*last=*/true
    );
    read_ = ids.size();
    return logits[-1];
  }

private:
  const TextReader& reader_;
  size_t length_;
  size_t first_ = 0; // first of the tokens that are seen
  size_t read_ = 0;  // the first that the cache does not hold yet
  std::optional<KeyValueCache> cache_;
};

/// Whether the scores of a token are those of what was read up to it, and the same over a cache:
/// seen at the beginning of the prompt.
void check_reading(const TextReader& reader, const Ids& prompt, bool cached) {
  constexpr size_t kMost = 32;
  constexpr double kSame = 1e-2; // other sizes of GEMMs round in another way
  Ids ids(prompt.begin(), prompt.begin() + static_cast<int64_t>(std::min(kMost, prompt.size())));
  if (ids.size() == 1) {
    ids.push_back(ids.front() == 0 ? 1 : ids.front() - 1); // another token has other values
  }
  if (static_cast<int64_t>(ids.size()) > reader.length()) {
    return;
  }
  const std::span<const int32_t> all(ids);
  const auto half = static_cast<int64_t>(ids.size() / 2);
  const at::Tensor whole = reader.read(all, 0, nullptr, false);
  const at::Tensor early = reader.read(all.first(ids.size() / 2), 0, nullptr, false);
  if (whole.size(0) != static_cast<int64_t>(ids.size())) {
    return; // its head gives the last scores only
  }
  const auto require_repeatable = [&] { // else other reasons are none
    if (!(score_distance(whole, reader.read(all, 0, nullptr, false)) <= kSame)) {
      throw WritesNoText(
          "this model cannot continue a text: its scores change from call to call",
          "a block draws random numbers outside of training, or keeps a state: megahost plugins check "
          "finds it (cached-generation)",
          exit_code::data
      );
    }
  };
  const double later = score_distance(whole.narrow(0, 0, half), early);
  if (!(later <= kSame)) {
    require_repeatable();
    throw WritesNoText(
        "this model cannot continue a text: its scores of a token change with the tokens after it",
        "ask it by megahost fill-mask, or generate with one that looks back only (model.causal)",
        exit_code::data
    );
  }
  if (!cached) {
    return;
  }
  KeyValueCache cache(reader.length());
  (void)reader.read(all.first(ids.size() - 1), 0, &cache, false);
  const at::Tensor last =
      reader.read(all.last(1), static_cast<int64_t>(ids.size()) - 1, &cache, false);
  if (!(score_distance(whole[-1], last[-1]) <= kSame)) {
    require_repeatable();
    throw Error(
        "the blocks of this model say that they read a cache, but over one its scores are others",
        "add --no-cache; its author finds the block by megahost plugins check (cached-generation)",
        exit_code::data
    );
  }
}

void check_ids(const Ids& ids, int64_t vocab, const std::string& what) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab) {
      throw Error(
          what + " holds the token " + std::to_string(id) + ", the model knows ids below " +
              std::to_string(vocab),
          "use the tokenizer that the model was trained with",
          exit_code::data
      );
    }
  }
}

/// The model's sequences are all there, and no others.
void check_other_sequences(const Session& session, const GenerateOptions& options) {
  const Sequences known = session.architecture->sequences();
  for (const auto& [name, length] : known) {
    const auto found = options.sequences.find(name);
    if (found == options.sequences.end() || found->second.empty()) {
      throw Error(
          "the model reads the sequence `" + name + "` in addition, of which there is no token",
          "add --sequence " + name + "=TEXT",
          exit_code::data
      );
    }
    if (static_cast<int64_t>(found->second.size()) > length) {
      throw Error(
          "the sequence `" + name + "` has " + std::to_string(found->second.size()) +
              " tokens, the model reads " + std::to_string(length),
          "give a shorter text",
          exit_code::data
      );
    }
    check_ids(found->second, session.architecture->vocab(), "the sequence `" + name + "`");
  }
  for (const auto& [name, ids] : options.sequences) {
    if (!known.contains(name)) {
      throw Error(
          "the model reads no sequence `" + name + "`",
          known.empty() ? "leave --sequence out" : "it reads `" + known.begin()->first + "`",
          exit_code::data
      );
    }
  }
}

void check_outputs(const Architecture& architecture) {
  if (!scores_tokens(architecture)) {
    throw WritesNoText(
        "this model cannot continue a text: it does not give `logits` of `tokens`",
        "its corpus and its head decide what it is for; `megahost eval` says its losses",
        exit_code::data
    );
  }
}

void check_prompt(const std::vector<int32_t>& prompt, int64_t vocab) {
  if (prompt.empty()) {
    throw Error(
        "the prompt holds no token", "give at least one character to go on from", exit_code::data
    );
  }
  check_ids(prompt, vocab, "the prompt");
}

struct Candidate {
  int32_t id;
  double weight; // a score, later a probability but for a common factor
};

bool likelier(const Candidate& a, const Candidate& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

/// Keeps the most likely candidates that have the share p together.
void keep_share(std::vector<Candidate>& candidates, double p) {
  std::sort(candidates.begin(), candidates.end(), likelier);
  double total = 0;
  for (const auto& candidate : candidates) {
    total += candidate.weight;
  }
  double sum = 0;
  size_t kept = 0;
  while (kept < candidates.size() && (kept == 0 || sum < p * total)) {
    sum += candidates[kept++].weight;
  }
  candidates.resize(kept);
}

} // namespace

bool scores_tokens(const Architecture& architecture) {
  const auto outputs = architecture.outputs();
  const auto arrays = architecture.arrays(/*seq_length=*/1);
  return std::ranges::find(outputs, "logits") != outputs.end() &&
         std::ranges::find(arrays, "tokens", &ArraySpec::name) != arrays.end();
}

int32_t choose_token(const at::Tensor& logits, const Sampling& sampling, uint64_t draw) {
  const at::Tensor scores = logits.to(at::kDouble).contiguous();
  const auto* score = scores.const_data_ptr<double>();
  std::vector<Candidate> candidates;
  for (int64_t i = 0; i < scores.numel(); ++i) {
    candidates.push_back({static_cast<int32_t>(i), score[i]});
  }
  const auto best = *std::min_element(candidates.begin(), candidates.end(), likelier);
  if (sampling.temperature == 0) {
    return best.id;
  }
  const auto count = static_cast<int64_t>(candidates.size());
  if (sampling.top_k > 0 && sampling.top_k < count) {
    const auto end = candidates.begin() + sampling.top_k;
    std::nth_element(candidates.begin(), end, candidates.end(), likelier);
    candidates.erase(end, candidates.end());
  }
  for (auto& candidate : candidates) {
    candidate.weight = std::exp((candidate.weight - best.weight) / sampling.temperature);
  }
  if (sampling.top_p < 1) {
    keep_share(candidates, sampling.top_p);
  }
  // In the order of their ids: rounding of the scores then changes little.
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.id < b.id;
  });
  double total = 0;
  for (const auto& candidate : candidates) {
    total += candidate.weight;
  }
  const auto words = philox(random_key(sampling.seed, "sample"), draw, 0);
  double left = total * (words[0] + words[1] * 0x1p-32) * 0x1p-32;
  for (const auto& candidate : candidates) {
    left -= candidate.weight;
    if (left < 0) {
      return candidate.id;
    }
  }
  return best.id;
}

at::Tensor token_scores(const Session& session, const std::vector<int32_t>& ids) {
  const at::NoGradGuard no_grad;
  check_outputs(*session.architecture);
  check_prompt(ids, session.architecture->vocab());
  const GenerateOptions options;
  check_other_sequences(session, options);
  const TextReader reader(session, options);
  if (static_cast<int64_t>(ids.size()) > reader.length()) {
    throw Error(
        "the text has " + std::to_string(ids.size()) + " tokens, the model sees " +
            std::to_string(reader.length()) + " at once",
        "give a shorter text",
        exit_code::data
    );
  }
  return reader.read(ids, 0, nullptr, /*last=*/false);
}

double score_distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / a.abs().max().clamp_min(1e-30)).item<double>();
}

Generated generate(
    const Session& session,
    std::vector<int32_t> prompt,
    const GenerateOptions& options,
    const std::function<bool(int32_t)>& on_token
) {
  const at::NoGradGuard no_grad;
  check_outputs(*session.architecture);
  check_prompt(prompt, session.architecture->vocab());
  check_other_sequences(session, options);
  const TextReader reader(session, options);
  const bool cached = options.cache && session.model->reads_cache();
  check_reading(reader, prompt, cached);
  const auto start = Clock::now();
  const auto end_of_document = session.tokenizer->end_of_document();
  Lookback lookback(reader, cached);
  std::vector<int32_t>& ids = prompt;
  Generated result;
  for (int64_t n = 0; n < options.tokens; ++n) {
    const at::Tensor logits = lookback.next(ids);
    const auto known = std::min(logits.numel(), session.tokenizer->vocab());
    const int32_t id =
        choose_token(logits.narrow(0, 0, known), options.sampling, static_cast<uint64_t>(n));
    result.seconds = seconds_since(start);
    result.first_seconds = n == 0 ? result.seconds : result.first_seconds;
    if (end_of_document == id) {
      result.ended = true;
      break;
    }
    ids.push_back(id);
    result.ids.push_back(id);
    if (!on_token(id)) {
      break;
    }
  }
  result.cached = lookback.cached();
  return result;
}

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<int32_t> prompt)
    : tokenizer_(tokenizer)
    , ids_(std::move(prompt))
    , given_(tokenizer.decode(ids_).size()) {}

std::string TextStream::add(int32_t id) {
  ids_.push_back(id);
  const std::string text = tokenizer_.decode(ids_);
  const size_t whole = whole_characters(text);
  if (whole <= given_) {
    return "";
  }
  const std::string_view news = std::string_view(text).substr(given_, whole - given_);
  given_ = whole;
  return valid_utf8(news);
}

std::string TextStream::finish() {
  const std::string text = tokenizer_.decode(ids_);
  return valid_utf8(std::string_view(text).substr(std::min(given_, text.size())));
}

} // namespace mh
