#include "core/train/sample.hpp"

#include "megahost/error.hpp"
#include "megahost/random.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

namespace mh {
namespace {

// Probabilities of the token after `ids`: float64 [vocab] on the host.
at::Tensor
next_probabilities(const Session& session, std::span<const int32_t> ids, double temperature) {
  Batch batch;
  batch.seq = static_cast<int64_t>(ids.size());
  batch.batch = 1;
  batch.samples = {0};
  const std::vector<int64_t> tokens(ids.begin(), ids.end());
  batch.arrays["tokens"] =
      at::tensor(tokens, at::kLong).unsqueeze(1).to(session.device->device()); // [seq, 1]
  StepContext context(session.mesh, session.rules, batch);
  const auto state = session.model->forward(context);
  const auto logits = state["logits"].value.select(0, -1).select(0, 0).to(at::kCPU, at::kDouble);
  return at::softmax(logits / temperature, 0);
}

} // namespace

SampledText sample_text(const Session& session, const SampleOptions& options) {
  const at::NoGradGuard no_grad;
  const auto start = std::chrono::steady_clock::now();
  const auto split = session.corpus->size(Split::valid) > 0 ? Split::valid : Split::train;
  const auto sample = session.corpus->sample(split, 0);
  const auto& given = std::get<std::vector<int64_t>>(sample.at("tokens"));
  const size_t prompt_length = std::min<size_t>(given.size(), 24);
  std::vector<int32_t> ids(given.begin(), given.begin() + static_cast<int64_t>(prompt_length));
  const auto window = static_cast<size_t>(session.recipe.model.seq_length);
  const int64_t known = session.tokenizer->vocab();
  const uint64_t key = random_key(options.seed, "sample");
  SampledText result{session.tokenizer->decode(ids), ""};
  for (uint64_t n = 0; static_cast<int64_t>(result.text.size()) < options.characters; ++n) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (spent.count() > options.seconds) {
      break;
    }
    const auto recent = std::span<const int32_t>(ids).last(std::min(ids.size(), window));
    const auto sums = at::cumsum(next_probabilities(session, recent, options.temperature), 0);
    const auto* sum = sums.const_data_ptr<double>();
    const auto choices = std::min<int64_t>(sums.numel(), known);
    const double drawn = sum[choices - 1] * philox(key, n, 0)[0] / 4294967296.0;
    ids.push_back(static_cast<int32_t>(
        std::min<int64_t>(std::upper_bound(sum, sum + choices, drawn) - sum, choices - 1)
    ));
    result.text = session.tokenizer->decode(std::span<const int32_t>(ids).subspan(prompt_length));
  }
  return result;
}

} // namespace mh
