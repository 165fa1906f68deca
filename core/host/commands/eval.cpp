#include "core/formats/json.hpp"
#include "core/host/commands/commands.hpp"
#include "core/host/given_weights.hpp"
#include "core/storage/local.hpp"
#include "core/train/evaluate.hpp"
#include "core/train/run_log.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <nlohmann/json.hpp>

#include <cstdio>

namespace mh {

namespace {

constexpr uint64_t kLargestIds = uint64_t{64} << 20;

/// Rows of equal length, at least two ids each: the last one of a row is only a label.
std::vector<std::vector<int64_t>> read_ids(const std::string& file, const Session& session) {
  LocalStorage disk;
  const nlohmann::json json = parse_json(read_file(disk, file, kLargestIds), file);
  const auto refuse = [&](const std::string& found) {
    throw Error(
        file + " holds " + found + ", expected rows of token ids, [[1, 2, 3], [4, 5, 6]]",
        "all rows have the same length, from 2 to model.seq_length + 1 = " +
            std::to_string(session.recipe.model.seq_length + 1),
        exit_code::data
    );
  };
  if (!json.is_array() || json.empty()) {
    refuse("no list");
  }
  std::vector<std::vector<int64_t>> rows;
  for (const auto& row : json) {
    if (!row.is_array()) {
      refuse("something beside rows");
    }
    std::vector<int64_t> ids;
    for (const auto& id : row) {
      if (!is_json_size(id) || id.get<int64_t>() >= session.architecture->vocab()) {
        throw Error(
            file + " holds " + id.dump() + ", expected ids from 0 to " +
                std::to_string(session.architecture->vocab() - 1),
            "use the ids of the model's tokenizer",
            exit_code::data
        );
      }
      ids.push_back(id.get<int64_t>());
    }
    if (ids.size() < 2 || static_cast<int64_t>(ids.size()) > session.recipe.model.seq_length + 1 ||
        (!rows.empty() && ids.size() != rows.front().size())) {
      refuse("a row of " + std::to_string(ids.size()) + " ids");
    }
    rows.push_back(std::move(ids));
  }
  return rows;
}

/// One microbatch per row.
std::vector<Batch> make_batches(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<Batch> batches;
  for (const auto& row : rows) {
    const at::Tensor ids = at::tensor(row, at::kLong).unsqueeze(1); // [seq + 1, 1]
    Batch batch;
    batch.seq = ids.size(0) - 1;
    batch.batch = 1;
    batch.samples = {static_cast<int64_t>(batches.size())};
    batch.arrays["tokens"] = ids.narrow(0, 0, batch.seq);
    batch.arrays["labels"] = ids.narrow(0, 1, batch.seq);
    batch.arrays["loss_mask"] = at::ones({batch.seq, 1});
    batches.push_back(std::move(batch));
  }
  return batches;
}

/// [batch, seq, vocab]
at::Tensor logits(const Session& session, const std::vector<Batch>& batches) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  for (const Batch& host : batches) {
    Batch batch = to_device(host, session.device->device());
    batch.arrays.erase("labels");
    StepContext context(session.mesh, session.rules, batch);
    const State state = session.model->forward(context);
    rows.push_back(state["logits"].value.to(at::kCPU, at::kFloat).transpose(0, 1));
  }
  return at::cat(rows);
}

void write_new(const std::string& file, const std::vector<NamedTensor>& tensors) {
  LocalStorage disk;
  if (disk.kind(file) == Storage::Kind::file) {
    disk.remove(file);
  }
  write_tensors(disk, file, tensors);
}

void print(
    const std::vector<LossValue>& losses, const GivenWeights& weights, const std::string& what
) {
  for (const LossValue& loss : losses) {
    if (!loss.main) {
      std::printf("%s %.7f\n", loss.name.c_str(), loss.value);
      continue;
    }
    std::printf(
        "%s %.7f | perplexity %.4f | over %.0f %s\n",
        loss.name.c_str(),
        loss.value,
        perplexity(loss.value),
        loss.count,
        what.c_str()
    );
  }
  std::printf("weights: %s\n", weights.words.c_str());
}

void evaluate_ids(const Invocation& invocation, Session& session, const GivenWeights& weights) {
  const auto batches = make_batches(read_ids(invocation.value("--ids"), session));
  if (invocation.has("--logits")) {
    write_new(invocation.value("--logits"), {{"logits", logits(session, batches)}});
  }
  std::vector<LossValue> losses;
  if (invocation.has("--gradients")) {
    session.model->parameters().allocate_gradients();
    losses = forward_backward(
        session.passes(),
        batches,
        /*seed=*/0,
        /*dropout=*/false
    );
    session.model->parameters().reduce_gradients(session.mesh);
    write_new(invocation.value("--gradients"), named_gradients(session, weights.hugging_face));
  } else {
    losses = forward_only(session.passes(), batches);
  }
  print(losses, weights, "tokens of " + invocation.value("--ids"));
}

void check_options(const Invocation& invocation) {
  if (!invocation.has("--weights")) {
    throw Error("megahost eval needs --weights DIR", "give a run folder or a Hugging Face folder");
  }
  for (const char* option : {"--logits", "--gradients"}) {
    if (invocation.has(option) && !invocation.has("--ids")) {
      throw Error(std::string(option) + " needs --ids", "give the token ids to compute them for");
    }
  }
}

} // namespace

int command_eval(const Invocation& invocation, Host& host) {
  check_options(invocation);
  Recipe recipe = read_resolved(invocation, host, invocation.arguments.front()).resolved.recipe;
  recipe.parallel = {}; // one rank, however many trained it: the numbers are the same
  const bool ids = invocation.has("--ids");
  if (ids) {
    recipe.batch = {};
  }
  const auto session =
      make_session(recipe, host, {.corpus = !ids, .initialise = false, .trains = false});
  const GivenWeights weights = load_weights(invocation.value("--weights"), *session);
  if (ids) {
    evaluate_ids(invocation, *session, weights);
    return 0;
  }
  if (session->corpus->size(Split::valid) == 0) {
    throw Error(
        "the validation split holds no sample (" + session->corpus->summary() + ")",
        "give data.split a larger second number, or evaluate --ids",
        exit_code::data
    );
  }
  print(evaluate_split(*session, Split::valid), weights, "tokens of the validation split");
  return 0;
}

} // namespace mh
