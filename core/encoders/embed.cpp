#include "core/encoders/embed.hpp"

#include "core/base/text.hpp"
#include "core/model/spans.hpp"
#include "core/step/batches.hpp"
#include "megahost/error.hpp"
#include "megahost/mesh.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <set>
#include <span>

namespace mh {

namespace {

constexpr const char* kQuery = "query";
constexpr size_t kAtOnce = 64; // texts of a pass

std::string array_name(EmbeddedText kind, const char* array) {
  return (kind == EmbeddedText::query ? std::string(kQuery) + "_" : "") + array;
}

} // namespace

Embedder::Embedder(const Session& session)
    : session_(session)
    , special_(session.tokenizer->special_ids()) {
  const auto outputs = session.architecture->outputs();
  for (const char* name : {"query_embedding", "context_embedding"}) {
    if (std::ranges::find(outputs, name) == outputs.end()) {
      throw Error(
          "this model makes no embeddings of queries and contexts",
          "train a retriever (docs/models.md, Retrievers)",
          exit_code::data
      );
    }
  }
}

int64_t Embedder::length(EmbeddedText kind) const {
  return kind == EmbeddedText::query ? session_.architecture->sequences().at(kQuery)
                                     : session_.recipe.model.seq_length;
}

std::vector<int64_t>
Embedder::ids(EmbeddedText kind, std::string_view text, std::string_view title) const {
  std::vector<int64_t> ids;
  const auto append = [&](std::string_view part) {
    const std::vector<int32_t> all = session_.tokenizer->encode(part);
    ids.insert(ids.end(), all.begin(), all.end());
  };
  if (!title.empty()) {
    append(title);
    if (special_.sep) {
      ids.push_back(*special_.sep);
    }
  }
  append(text);
  const size_t most = static_cast<size_t>(length(kind)) - (special_.sep ? 1 : 0);
  if (special_.cls && (ids.empty() || ids.front() != *special_.cls)) {
    ids.insert(ids.begin(), *special_.cls);
  }
  if (special_.sep && !ids.empty() && ids.back() == *special_.sep) {
    ids.pop_back();
  }
  ids.resize(std::min(ids.size(), most));
  if (special_.sep) {
    ids.push_back(*special_.sep);
  }
  for (const int64_t id : ids) {
    if (id < 0 || id >= session_.architecture->vocab()) {
      throw Error(
          "the text holds the token " + std::to_string(id) + ", the model knows ids below " +
              std::to_string(session_.architecture->vocab()),
          "use the tokenizer that the model was trained with",
          exit_code::data
      );
    }
  }
  return ids;
}

std::vector<int64_t> Embedder::ids(EmbeddedText kind, const Sample& sample) {
  const auto ids = first_document(sample, kind == EmbeddedText::query ? kQuery : "");
  if (ids.empty()) {
    throw Error(
        "the corpus gives no `" + array_name(kind, "tokens") +
            "`, which a retriever's samples have",
        "choose a corpus of pairs (docs/models.md, Retrievers)",
        exit_code::data
    );
  }
  return {ids.begin(), ids.end()};
}

std::string Embedder::text(const std::vector<int64_t>& ids) const {
  std::set<int64_t> none;
  for (const auto& id : {special_.cls, special_.sep, special_.pad}) {
    if (id) {
      none.insert(*id);
    }
  }
  std::vector<int32_t> words;
  for (const int64_t id : ids) {
    if (!none.contains(id)) {
      words.push_back(static_cast<int32_t>(id));
    }
  }
  return valid_utf8(session_.tokenizer->decode(words));
}

at::Tensor
Embedder::embed(EmbeddedText kind, const std::vector<std::vector<int64_t>>& texts) const {
  const Group& ranks = session_.mesh.all();
  const auto all = texts.size(), ways = static_cast<size_t>(ranks.size());
  const size_t share = (all + ways - 1) / ways;
  const size_t begin = std::min(all, static_cast<size_t>(ranks.index()) * share);
  std::vector<std::vector<int64_t>> own(
      texts.begin() + static_cast<ptrdiff_t>(begin),
      texts.begin() + static_cast<ptrdiff_t>(std::min(all, begin + share))
  );
  own.resize(share, texts.front()); // all ranks give rows of one number
  std::vector<at::Tensor> rows;
  for (size_t first = 0; first < share; first += kAtOnce) {
    const auto from = own.begin() + static_cast<ptrdiff_t>(first);
    rows.push_back(
        embed_batch(kind, {from, from + static_cast<ptrdiff_t>(std::min(kAtOnce, share - first))})
    );
  }
  const at::Tensor here = at::cat(rows).to(session_.device->device()); // where ranks exchange
  return ranks.all_gather(here, 0).narrow(0, 0, static_cast<int64_t>(all)).to(at::kCPU);
}

at::Tensor
Embedder::embed_batch(EmbeddedText kind, const std::vector<std::vector<int64_t>>& texts) const {
  const at::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(texts.size());
  size_t longest = 1;
  for (const auto& ids : texts) {
    longest = std::max(longest, ids.size());
  }
  const at::Tensor tokens =
      at::full({static_cast<int64_t>(longest), count}, special_.pad.value_or(0), at::kLong);
  const at::Tensor segments = at::ones(tokens.sizes(), at::kLong);
  auto token = tokens.accessor<int64_t, 2>();
  auto segment = segments.accessor<int64_t, 2>();
  Batch host;
  host.batch = count;
  for (int64_t column = 0; column < count; ++column) {
    host.samples.push_back(column);
    const auto& ids = texts[static_cast<size_t>(column)];
    for (size_t row = 0; row < ids.size(); ++row) {
      token[static_cast<int64_t>(row)][column] = ids[row];
      segment[static_cast<int64_t>(row)][column] = 0;
    }
  }
  host.arrays[array_name(kind, "tokens")] = tokens;
  host.arrays[array_name(kind, "segments")] = segments;
  host.seq = static_cast<int64_t>(longest);
  host.sequences = session_.architecture->sequences();
  if (kind == EmbeddedText::query) {
    host.sequences[kQuery] = static_cast<int64_t>(longest);
  }
  const auto device = session_.device->device();
  const Batch batch = to_device(host, device);
  StepContext context(session_.mesh, session_.rules, batch, {.target = device.type()});
  const State state = session_.model->forward(context);
  const char* name = kind == EmbeddedText::query ? "query_embedding" : "context_embedding";
  return state[name].value.to(at::kCPU, at::kFloat).contiguous();
}

} // namespace mh
