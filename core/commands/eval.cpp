#include "core/base/number_text.hpp"
#include "core/bench/gemm_choice.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/commands/commands.hpp"
#include "core/commands/given_arrays.hpp"
#include "core/commands/run_output.hpp"
#include "core/formats/json.hpp"
#include "core/mesh/spawn.hpp"
#include "core/options/place.hpp"
#include "core/records/run_log.hpp"
#include "core/session/evaluate.hpp"
#include "core/storage/file_system.hpp"
#include "core/train/given_weights.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <utility>

namespace mh {

namespace {

constexpr uint64_t kLargestIds = uint64_t{64} << 20;

/// Rows of equal length, of 2 to `most` ids.
std::vector<std::vector<int64_t>> read_ids(
    const nlohmann::json& json, const std::string& file, const Session& session, int64_t most
) {
  const auto refuse = [&](const std::string& found) {
    throw Error(
        file + " holds " + found + ", expected rows of token ids, [[1, 2, 3], [4, 5, 6]]",
        "all rows have the same length, from 2 to model.seq_length" +
            std::string(most > session.recipe.model.seq_length ? " + 1 = " : " = ") +
            std::to_string(most) + (most > session.recipe.model.seq_length ? "" : " with --logits"),
        exit_code::data
    );
  };
  if (!json.is_array() || json.empty()) {
    refuse("no list");
  }
  std::vector<std::vector<int64_t>> rows;
  for (const auto& row : json) {
    if (!row.is_array()) {
      refuse("something that is no row");
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
    if (ids.size() < 2 || static_cast<int64_t>(ids.size()) > most ||
        (!rows.empty() && ids.size() != rows.front().size())) {
      refuse("a row of " + std::to_string(ids.size()) + " ids");
    }
    rows.push_back(std::move(ids));
  }
  return rows;
}

/// One microbatch per row; the last id of a row is only a label.
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

/// One microbatch per row, of all its ids, without labels.
std::vector<Batch> make_unlabelled(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<Batch> batches;
  for (const auto& row : rows) {
    Batch batch;
    batch.seq = static_cast<int64_t>(row.size());
    batch.batch = 1;
    batch.samples = {static_cast<int64_t>(batches.size())};
    batch.arrays["tokens"] = at::tensor(row, at::kLong).unsqueeze(1);
    batches.push_back(std::move(batch));
  }
  return batches;
}

/// The outputs of the model without labels: logits of every token, [batch, tokens, vocab], or else those
/// of its samples, [batch, ...].
std::vector<NamedTensor> outputs(const Session& session, const std::vector<Batch>& batches) {
  const at::NoGradGuard no_grad;
  std::vector<NamedTensor> all;
  for (const std::string& name : session.architecture->outputs()) {
    std::vector<at::Tensor> rows;
    for (const Batch& host : batches) {
      const Batch batch = to_device(host, session.device->device());
      StepContext context(session.mesh, session.rules, batch);
      const State state = session.model->forward(context);
      if (!state.has(name)) {
        throw Error("this model has no logits to write", "leave --logits out", exit_code::data);
      }
      const auto& [value, dims] = state[name];
      const bool per_token = dims.front().logical == axis::seq;
      rows.push_back(
          (per_token ? value.transpose(0, 1) : value).to(at::kCPU, at::kFloat).contiguous()
      );
    }
    all.push_back({name, at::cat(rows)});
  }
  return all;
}

void write_new(const std::string& file, const std::vector<NamedTensor>& tensors) {
  write_tensors(local_storage(), file, tensors, {{"format", "pt"}}, Storage::Existing::replace);
}

/// `of_what` follows the number of tokens, or of samples of a model that has no logits of tokens.
void print(
    Output& output,
    const Session& session,
    const std::vector<LossValue>& losses,
    const GivenWeights& weights,
    const std::string& of_what
) {
  const auto outputs = session.architecture->outputs();
  const bool tokens = std::find(outputs.begin(), outputs.end(), "logits") != outputs.end();
  for (const LossValue& loss : losses) {
    std::string text = formatted("%s %.7f", loss.name.c_str(), loss.value);
    if (loss.main) {
      text += (tokens ? formatted(" | perplexity %.4f", perplexity(loss.value)) : "") + " | over " +
              grouped(std::llround(loss.count)) + (tokens ? " tokens" : " samples") + of_what;
    }
    output.line(text);
  }
  output.line("weights: " + weights.description);
}

void evaluate_ids(
    const Invocation& invocation, Session& session, const GivenWeights& weights, Output& output
) {
  const bool all = invocation.has("--logits"); // logits of a row's last id, too
  const std::string& file = invocation.value("--ids");
  const nlohmann::json json = parse_json(read_file(file, kLargestIds), file);
  std::vector<Batch> batches, unlabelled;
  if (json.is_object()) {
    const GivenArrays given(json, file, session);
    batches = given.batches(/*labels=*/true);
    unlabelled = given.batches(/*labels=*/false);
  } else {
    const auto rows =
        read_ids(json, file, session, session.recipe.model.seq_length + (all ? 0 : 1));
    batches = make_batches(rows);
    unlabelled = make_unlabelled(rows);
  }
  for (Batch& batch : batches) {
    add_shifted(session.architecture->shifted_arrays(), batch.arrays);
  }
  if (all) {
    write_new(invocation.value("--logits"), outputs(session, unlabelled));
  }
  std::vector<LossValue> losses;
  if (invocation.has("--gradients")) {
    Gradients gradients(session.model->parameters(), session.mesh);
    gradients.begin(std::ssize(batches));
    losses = forward_backward(
        session.passes(),
        batches,
        /*seed=*/0,
        /*dropout=*/false
    );
    gradients.finish();
    write_new(invocation.value("--gradients"), named_gradients(session, weights.names));
  } else {
    losses = forward_only(session.passes(), batches);
  }
  print(output, session, losses, weights, " of " + invocation.value("--ids"));
}

/// Shows how far an evaluation is: a bar on a terminal, else a line now and then.
class ProgressBar {
public:
  explicit ProgressBar(Output& output)
      : output_(output) {}

  void operator()(const Evaluated& evaluated) {
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    const double share = static_cast<double>(evaluated.samples) / static_cast<double>(evaluated.of);
    const auto main =
        std::find_if(evaluated.losses.begin(), evaluated.losses.end(), [](const auto& loss) {
          return loss.main;
        });
    const std::string text = formatted(
        "%s of %s samples  loss %.4f  ETA %s",
        grouped(evaluated.samples).c_str(),
        grouped(evaluated.of).c_str(),
        main == evaluated.losses.end() ? 0.0 : main->value,
        duration_text(seconds / share * (1 - share)).c_str()
    );
    output_.progress(share, text);
    if (!terminal_.interactive && share < 1 && seconds - told_ >= kBetweenLines) {
      told_ = seconds;
      std::fprintf(stderr, "%s\n", text.c_str());
    }
  }

private:
  using Clock = std::chrono::steady_clock;
  static constexpr double kBetweenLines = 20; // seconds

  Clock::time_point start_ = Clock::now();
  double told_ = 0;
  Terminal terminal_ = Terminal::of(STDERR_FILENO);
  Output& output_;
};

Split split_of(const Invocation& invocation) {
  const std::string name = invocation.value("--split", "valid");
  return name == "train" ? Split::train : name == "test" ? Split::test : Split::valid;
}

void evaluate_samples(
    const Invocation& invocation,
    const Session& session,
    const GivenWeights& weights,
    Output& output
) {
  const Split split = split_of(invocation);
  const std::string name(name_of(split));
  if (samples_of(*session.corpus, split) == 0) {
    throw Error(
        "the " + name + " split holds no sample (" + summary_of(*session.corpus) + ")",
        "give data.split a larger " +
            std::string(
                split == Split::train   ? "first"
                : split == Split::valid ? "second"
                                        : "third"
            ) +
            " number, choose another split by --split, or evaluate --ids",
        exit_code::data
    );
  }
  const bool all = invocation.has("--all"), first = session.mesh.rank() == 0;
  if (const std::string repeats = all ? "" : repeated_samples(session, split);
      !repeats.empty() && first) {
    output.warning(repeats + "; --all reads each of them once");
  }
  ProgressBar bar(output);
  const EvaluationProgress progress =
      first ? EvaluationProgress([&bar](const Evaluated& far) { bar(far); }) : EvaluationProgress();
  const Evaluated evaluated = all ? evaluate_whole_split(session, split, progress)
                                  : evaluate_split(session, split, progress);
  if (first) {
    print(
        output,
        session,
        evaluated.losses,
        weights,
        all ? ": all " + counted(evaluated.samples, "sample") + " of the " + name + " split"
            : " of the " + name + " split"
    );
  }
}

/// Refuses a file that could not be written, before anything is computed for it.
void require_writable(const char* option, const std::string& file) {
  const auto folder = std::filesystem::absolute(file).parent_path();
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw Error(
        std::string(option) + ": there is no folder " + folder.string(),
        "make it, or name a file in another one"
    );
  }
  if (std::filesystem::path(file).extension() != ".safetensors") {
    throw Error(
        std::string(option) + " " + file + ": the file is written as safetensors",
        "give it a name that ends in .safetensors"
    );
  }
}

void check_options(const Invocation& invocation, int64_t world, Host& host) {
  if (!invocation.has("--weights")) {
    throw Error("megahost eval needs --weights DIR", "give a run folder or a Hugging Face folder");
  }
  (void)format_of(invocation.value("--weights"), host, invocation.value("--weights-format"));
  for (const char* option : {"--logits", "--gradients"}) {
    if (invocation.has(option) && !invocation.has("--ids")) {
      throw Error(std::string(option) + " needs --ids", "give the token ids to compute them for");
    }
    if (invocation.has(option)) {
      require_writable(option, invocation.value(option));
    }
  }
  for (const char* option : {"--split", "--all"}) {
    if (invocation.has(option) && invocation.has("--ids")) {
      throw Error(
          std::string(option) + " is about the recipe's data, and --ids takes its place",
          "leave one of them out"
      );
    }
  }
  if (world > 1 && invocation.has("--ids")) {
    throw Error("--ids is evaluated on one rank", "leave --nproc or the launcher out");
  }
}

/// The layout that evaluates: the recipe's where there are ranks for it, else one rank: the numbers
/// are the same.
void set_layout(Recipe& recipe, int64_t world) {
  if (world == 1) {
    recipe.parallel = {};
  } else {
    recipe.parallel.zero = 0; // there are neither gradients nor an optimizer's state
  }
}

} // namespace

int command_eval(const Invocation& invocation, Host& host) {
  const Read read = read_resolved(invocation, host, invocation.arguments.front());
  const int64_t world = world_size(invocation, read.place);
  check_options(invocation, world, host);
  Recipe recipe = read.resolved.recipe;
  set_layout(recipe, world);
  if (!read.place && world > 1) {
    return run_as_ranks(invocation, world, recipe.comm.hang_after, read.files);
  }
  const auto processes = meet_ranks(read.place, recipe, host);
  const bool ids = invocation.has("--ids");
  if (ids) {
    recipe.batch = {};
  }
  RunOutput output;
  try {
    const auto session = make_session(
        recipe,
        host,
        {.corpus = !ids,
         .initialise = false,
         .whole_splits = invocation.has("--all"),
         .trains = false,
         .processes = processes.get(),
         .warn = [&output](const std::string& text) { output.warning(text); }}
    );
    // A few ids are read before a machine's GEMMs could be timed.
    const auto unknown = ids ? UnknownMachine::own : UnknownMachine::measure;
    (void)session->share_gemm([unknown] { return chosen_gemm(unknown); });
    const auto weights =
        load_weights(invocation.value("--weights"), *session, host, weights_wanted(invocation));
    if (ids) {
      evaluate_ids(invocation, *session, weights, output);
    } else {
      evaluate_samples(invocation, *session, weights, output);
    }
  } catch (const CollectiveError& error) {
    if (!processes) {
      throw;
    }
    throw processes->explained(error);
  }
  return 0;
}

} // namespace mh
