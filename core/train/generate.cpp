#include "core/train/generate.hpp"

#include "core/base/seconds.hpp"
#include "core/base/text.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/attention.hpp"
#include "megahost/random.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

namespace mh {
namespace {

/// What the model sees of the tokens so far.
class Lookback {
public:
  Lookback(const Session& session, bool cache)
      : session_(session)
      , length_(static_cast<size_t>(session.recipe.model.seq_length)) {
    if (cache && session.model->reads_cache()) {
      cache_.emplace(session.recipe.model.seq_length);
    }
  }

  [[nodiscard]] bool cached() const { return cache_.has_value(); }

  /// Scores of the token after `ids`, which are those of the last call and one more: [vocab].
  at::Tensor next(const std::vector<int32_t>& ids) {
    if (ids.size() - first_ > length_) {
      // A long prompt keeps as much as there is room for; later on half, so that it is read seldom.
      first_ = ids.size() - (first_ == 0 && read_ == 0 ? length_ : (length_ + 1) / 2);
      read_ = first_;
      if (cache_) {
        cache_.emplace(session_.recipe.model.seq_length);
      }
    }
    const at::Tensor logits = forward(ids, cache_ ? read_ : first_);
    read_ = ids.size();
    return logits;
  }

private:
  at::Tensor forward(const std::vector<int32_t>& ids, size_t begin) {
    const auto device = session_.device->device();
    const std::vector<int64_t> tokens(ids.begin() + static_cast<int64_t>(begin), ids.end());
    const auto offset = static_cast<int64_t>(begin - first_);
    Batch batch;
    batch.seq = static_cast<int64_t>(tokens.size());
    batch.batch = 1;
    batch.samples = {0};
    batch.arrays["tokens"] = at::tensor(tokens, at::kLong).unsqueeze(1).to(device); // [seq, 1]
    batch.arrays["token_index"] = at::arange(offset, offset + batch.seq, at::kLong).to(device);
    StepContext context(
        session_.mesh,
        session_.rules,
        batch,
        {.last_logits = true, .target = device.type(), .kv_cache = cache_ ? &*cache_ : nullptr}
    );
    const State state = session_.model->forward(context);
    return state["logits"].value.select(0, -1).select(0, 0).to(at::kCPU, at::kDouble);
  }

  const Session& session_;
  size_t length_;
  size_t first_ = 0; // of the tokens that are seen
  size_t read_ = 0;  // the first that the cache does not hold yet
  std::optional<KeyValueCache> cache_;
};

void check_prompt(const std::vector<int32_t>& prompt, int64_t vocab) {
  if (prompt.empty()) {
    throw Error(
        "the prompt holds no token", "give at least one character to go on from", exit_code::data
    );
  }
  for (const int32_t id : prompt) {
    if (id < 0 || id >= vocab) {
      throw Error(
          "the prompt holds the token " + std::to_string(id) + ", the model knows ids below " +
              std::to_string(vocab),
          "use the tokenizer that the model was trained with",
          exit_code::data
      );
    }
  }
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

Generated generate(
    const Session& session,
    std::vector<int32_t> prompt,
    const GenerateOptions& options,
    const std::function<bool(int32_t)>& on_token
) {
  const at::NoGradGuard no_grad;
  check_prompt(prompt, session.architecture->vocab());
  const auto start = Clock::now();
  const auto end_of_document = session.tokenizer->end_of_document();
  Lookback lookback(session, options.cache);
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
