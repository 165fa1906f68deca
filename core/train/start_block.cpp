#include "core/train/start_block.hpp"

#include "core/config.hpp"
#include "core/train/devices.hpp"
#include "core/train/words.hpp"
#include "megahost/abi.hpp"

#include <algorithm>
#include <utility>

namespace mh {
namespace {

std::string layout_text(const Recipe& recipe, const Mesh& mesh) {
  const auto& shape = mesh.shape();
  std::string text =
      words("%lld rank%s", static_cast<long long>(mesh.world()), mesh.world() == 1 ? "" : "s");
  for (const auto& [name, degree] :
       {std::pair("tensor", shape.tp),
        std::pair("context", shape.cp),
        std::pair("pipeline", shape.pp),
        std::pair("data", shape.dp),
        std::pair("expert", shape.ep)}) {
    if (degree > 1) {
      text += words(", %s %lld", name, static_cast<long long>(degree));
    }
  }
  return text + "; recompute " + recipe.recompute.use;
}

std::string model_text(const Session& session) {
  const auto& store = session.model->parameters();
  std::string text = session.recipe.model.use + ", " + grouped(session.architecture->layers()) +
                     " layers, " + grouped(store.global_elements()) + " parameters";
  const int64_t vocab = session.architecture->vocab();
  if (session.padded_vocab() != vocab) {
    text += words(
        "; padded vocab %lld -> %lld (%lld dummy tokens)",
        static_cast<long long>(vocab),
        static_cast<long long>(session.padded_vocab()),
        static_cast<long long>(session.padded_vocab() - vocab)
    );
  }
  return text;
}

std::string batch_text(const Session& session) {
  const auto layout = session.layout();
  return words(
      "%s samples of %s tokens = %s tokens per step, in %lld microbatch%s of %lld",
      grouped(layout.global()).c_str(),
      grouped(layout.seq).c_str(),
      grouped(layout.global() * layout.seq).c_str(),
      static_cast<long long>(layout.microbatches),
      layout.microbatches == 1 ? "" : "es",
      static_cast<long long>(layout.micro)
  );
}

/// Bytes that a run holds from its start to its end.
struct StateBytes {
  StateBytes(const Session& session, const Weights& weights)
      : gradients(static_cast<int64_t>(session.model->parameters().gradients().nbytes()))
      , optimizer(weights.bytes()) {
    for (const auto& parameter : session.model->parameters().all()) {
      parameters += static_cast<int64_t>(parameter.value.nbytes());
    }
  }

  [[nodiscard]] int64_t all() const { return parameters + gradients + optimizer; }

  int64_t parameters = 0, gradients, optimizer;
};

std::string memory_text(const Session& session, const Weights& weights) {
  const StateBytes bytes(session, weights);
  return "weights " + bytes_text(bytes.parameters) + ", gradients " + bytes_text(bytes.gradients) +
         ", optimizer " + bytes_text(bytes.optimizer) + ": " + bytes_text(bytes.all()) +
         " and activations" +
         (session.device->memory() > 0 ? ", of " + bytes_text(session.device->memory()) : "");
}

std::string device_text(const Session& session) {
  const double peak = session.device->peak_flops(session.dtype);
  return session.device->summary() +
         (peak > 0 ? words("; peak %.0f TFLOP/s (data sheet)", peak / 1e12) : "; peak not known");
}

std::string precision_text(const Session& session) {
  return session.dtype == at::kFloat ? "fp32"
                                     : "bf16 weights; fp32 gradients, master weights and loss";
}

} // namespace

std::vector<std::string> used_plugins(const Recipe& recipe, Host& host) {
  std::vector<std::pair<Kind, std::string>> used{
      {Kind::architecture, recipe.model.use},
      {Kind::optimizer, recipe.optimizer.use},
      {Kind::lr_schedule, recipe.lr_schedule.use},
      {Kind::corpus, recipe.data.use},
      {Kind::tokenizer, recipe.tokenizer.use},
      {Kind::recompute, recipe.recompute.use}};
  for (const auto& name : strategy_names(recipe)) {
    used.emplace_back(Kind::strategy, name);
  }
  std::vector<std::string> plugins;
  for (const auto& [kind, name] : used) {
    const auto& plugin = *host.require(kind, name).plugin;
    const std::string text = plugin.id + " " + plugin.version;
    if (std::find(plugins.begin(), plugins.end(), text) == plugins.end()) {
      plugins.push_back(text);
    }
  }
  return plugins;
}

std::string peak_text(const Session& session, const Weights& weights, int64_t peak) {
  const int64_t more = std::max<int64_t>(0, peak - StateBytes(session, weights).all());
  return "  memory     peak " + bytes_text(peak) + " in the first step: " + bytes_text(more) +
         " beside weights, gradients and optimizer (activations, buffers" +
         (session.device->device().is_cpu() ? ", the program itself)" : ")");
}

std::vector<std::string> start_block(
    const Session& session,
    const Weights& weights,
    const std::vector<std::string>& plugins,
    const std::filesystem::path& folder
) {
  std::string names;
  for (const auto& plugin : plugins) {
    names += (names.empty() ? "" : ", ") + plugin;
  }
  const auto& recipe = session.recipe;
  return {
      "megahost " MH_VERSION ", LibTorch " TORCH_VERSION,
      "  plugins    " + names,
      "  device     " + device_text(session),
      "  layout     " + layout_text(recipe, session.mesh),
      "  model      " + model_text(session),
      "  precision  " + precision_text(session),
      "  batch      " + batch_text(session),
      "  memory     " + memory_text(session, weights),
      "  data       " + session.corpus->summary(),
      "  run        " + recipe.name + ", " + grouped(recipe.iterations()) + " steps, in " +
          folder.string()};
}

} // namespace mh
