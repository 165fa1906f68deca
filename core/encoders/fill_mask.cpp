#include "core/encoders/fill_mask.hpp"

#include "core/session/generate.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <string>
#include <tuple>

namespace mh {

namespace {

void append(std::vector<int32_t>& ret_ids, const std::vector<int32_t>& more) {
  ret_ids.insert(ret_ids.end(), more.begin(), more.end());
}

} // namespace

MaskedText masked_text(std::string_view text, const Tokenizer& tokenizer) {
  const SpecialIds special = tokenizer.special_ids();
  if (!special.mask) {
    throw Error(
        "the model's tokenizer has no token that stands for a hidden one",
        "ask a model that was trained to find hidden tokens (docs/models.md, BERT)",
        exit_code::data
    );
  }
  const std::string own = tokenizer.token(*special.mask);
  MaskedText masked;
  if (special.cls) {
    masked.ids.push_back(*special.cls);
  }
  masked.first = masked.ids.size();
  while (true) {
    const size_t usual = text.find(kMaskWord), written = own.empty() ? text.npos : text.find(own);
    const size_t at = std::min(usual, written);
    append(masked.ids, tokenizer.encode(text.substr(0, at)));
    if (at == text.npos) {
      break;
    }
    masked.hidden.push_back(masked.ids.size());
    masked.ids.push_back(*special.mask);
    text.remove_prefix(at + (usual <= written ? kMaskWord.size() : own.size()));
  }
  masked.last = masked.ids.size();
  if (masked.hidden.empty()) {
    throw Error(
        "the text hides no token",
        "write " + std::string(kMaskWord) + " where the model is to guess"
    );
  }
  if (special.sep) {
    masked.ids.push_back(*special.sep);
  }
  return masked;
}

void require_fills_masks(const Architecture& architecture) {
  if (const auto others = architecture.sequences(); !others.empty()) {
    const bool writes = scores_tokens(architecture);
    const std::string& name = others.begin()->first;
    throw Error(
        "this model reads the sequence `" + name + "`, too, and guesses no hidden tokens",
        writes ? "megahost generate RUN --sequence " + name +
                     "=TEXT writes what a text's sentinels (<extra_id_0>, ...) stand for"
               : "megahost embed RUN searches with a model of queries and contexts",
        exit_code::data
    );
  }
}

std::vector<std::vector<Guess>>
fill_mask(const Session& session, const MaskedText& text, int64_t most) {
  const at::Tensor scores = token_scores(session, text.ids);
  const int64_t known = std::min(scores.size(-1), session.tokenizer->vocab());
  most = std::min(most, known);
  std::vector<std::vector<Guess>> guesses;
  for (const size_t place : text.hidden) {
    const at::Tensor shares =
        scores[static_cast<int64_t>(place)].narrow(0, 0, known).softmax(-1).contiguous();
    const auto [values, ids] = shares.topk(most);
    auto& here = guesses.emplace_back();
    for (int64_t i = 0; i < most; ++i) {
      here.push_back({static_cast<int32_t>(ids[i].item<int64_t>()), values[i].item<double>()});
    }
  }
  return guesses;
}

} // namespace mh
