#include "core/train/start_block.hpp"

#include "core/base/number_text.hpp"
#include "core/config.hpp"
#include "core/mesh/layout.hpp"
#include "core/model/outline.hpp"
#include "core/model/plugin_call.hpp"
#include "core/train/layout_settings.hpp"
#include "megahost/abi.hpp"

#include <algorithm>
#include <utility>

namespace mh {
namespace {

/// The decision of a policy that chose by memory.
std::string plan_text(const Session& session) {
  if (!session.kept_by_memory) {
    return "";
  }
  int64_t again = 0, parts = 0;
  for (const auto& keep : kept_by(*session.recompute, session.layers())) {
    again += keep.everything ? 0 : 1;
    parts += keep.everything && !keep.redo.empty() ? 1 : 0;
  }
  return formatted(
      ": %lld blocks%s run again, %lld a part of theirs, %lld keep everything",
      static_cast<long long>(again),
      session.stages.empty() ? "" : " of this stage",
      static_cast<long long>(parts),
      static_cast<long long>(session.layers() - again - parts)
  );
}

std::string layout_text(const Session& session, Host& host) {
  const Recipe& recipe = session.recipe;
  const Mesh& mesh = session.mesh;
  const auto& shape = mesh.shape();
  std::string text =
      formatted("%lld rank%s", static_cast<long long>(mesh.world()), mesh.world() == 1 ? "" : "s");
  for (const MeshAxis axis :
       {MeshAxis::tp, MeshAxis::cp, MeshAxis::pp, MeshAxis::dp, MeshAxis::ep}) {
    if (const int64_t ranks = degree(shape, axis); ranks > 1) {
      text += ", " + recipe.parallel.word(axis) + " " + std::to_string(ranks);
    }
  }
  text += settings_text(recipe, shape, host);
  if (shape.pp > 1) {
    text += "; " + recipe.parallel.schedule.use + " over " + mh::layout_text(session.stages);
  }
  return text + "; recompute " + recipe.recompute.use + plan_text(session);
}

std::string model_text(const Session& session) {
  std::string text = session.recipe.model.use + ", " +
                     counted(layer_count(*session.architecture), "layer") + ", " +
                     grouped(session.model->global_elements()) + " parameters";
  const int64_t vocab = session.architecture->vocab();
  if (session.padded_vocab() != vocab) {
    text += formatted(
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
  const auto& batch = session.recipe.batch;
  const std::string growing = batch.rampup_start
                                  ? "growing from " + grouped(*batch.rampup_start) + " by " +
                                        grouped(*batch.rampup_increment) + " over " +
                                        grouped(*batch.rampup_samples) + " samples to "
                                  : "";
  return growing + formatted(
                       "%s samples of %s tokens = %s tokens per step, in %lld microbatch%s of %lld",
                       grouped(layout.global()).c_str(),
                       grouped(layout.tokens_per_sample()).c_str(),
                       grouped(layout.global() * layout.tokens_per_sample()).c_str(),
                       static_cast<long long>(layout.microbatches),
                       layout.microbatches == 1 ? "" : "es",
                       static_cast<long long>(layout.micro)
                   );
}

/// Bytes that a run holds from its start to its end.
struct StateBytes {
  StateBytes(const Session& session, const Weights& weights)
      : parameters(session.gradients->value_bytes())
      , gradients(session.gradients->bytes())
      , optimizer(weights.bytes()) {}

  [[nodiscard]] int64_t all() const { return parameters + gradients + optimizer; }

  int64_t parameters, gradients, optimizer;
};

std::string memory_text(const Session& session, const Weights& weights, const SaveBytes& saves) {
  const StateBytes bytes(session, weights);
  return "weights " + bytes_text(bytes.parameters) + ", gradients " + bytes_text(bytes.gradients) +
         ", optimizer " + bytes_text(bytes.optimizer) + ": " + bytes_text(bytes.all()) +
         " and activations" +
         (weights.host_bytes() > 0
              ? "; in host memory " + bytes_text(weights.host_bytes()) + " of the optimizer"
              : "") +
         (saves.copy > 0 ? "; from the first save on " + bytes_text(saves.copy) +
                               " of host memory for its copy"
          : saves.staged > 0
              ? "; while a checkpoint is saved " + bytes_text(saves.staged) + " of host memory"
              : "") +
         (session.device->memory() > 0 ? ", of " + bytes_text(session.device->memory()) : "");
}

std::string device_text(const Session& session, const DevicePeak& peak) {
  return session.device->summary() +
         (peak.flops > 0
              ? formatted("; peak %.4g TFLOP/s (%s)", peak.flops / 1e12, peak.source.c_str())
              : "; peak not known");
}

std::string precision_text(const Session& session) {
  const auto& recipe = session.recipe;
  const auto& optimizer = recipe.optimizer;
  const bool cpu = session.device->device().is_cpu();
  std::string text = recipe.precision;
  if (recipe.precision == "fp8") {
    text += " GEMMs (E4M3, gradients E5M2, " + recipe.fp8.recipe +
            " scaling) but for output layer and routers; bf16";
  }
  if (recipe.precision != "fp32") {
    text += optimizer.master_weights ? " weights; fp32 gradients, master weights and loss"
                                     : " weights without masters; fp32 gradients and loss";
  }
  if (recipe.precision == "fp16") {
    const auto& scale = recipe.fp16.loss_scale;
    text += "; loss scale " + (scale ? formatted("%g", *scale) : "dynamic") +
            (cpu ? " (slow: this program has no fp16 kernels of its own for a CPU)" : "");
  }
  if (recipe.precision == "fp8" && cpu) {
    text += " (slow: FP8 is emulated)";
  }
  return text + (optimizer.state_dtype == "bf16" ? "; bf16 optimizer state" : "") +
         (optimizer.stochastic_rounding ? ", rounded stochastically" : "");
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
  for (const auto& name : recipe.parallel.strategies) {
    used.emplace_back(Kind::strategy, name);
  }
  if (recipe.parallel.pipeline > 1) {
    used.emplace_back(Kind::pipeline_schedule, recipe.parallel.schedule.use);
  }
  used.emplace_back(Kind::device, recipe.device.use);
  used.emplace_back(Kind::checkpoint_format, recipe.checkpoint.use);
  if (recipe.launcher) {
    used.emplace_back(Kind::launcher, recipe.launcher->use);
  }
  std::vector<std::string> plugins;
  for (const auto& [kind, name] : used) {
    const auto& plugin = *host.require(kind, name).plugin;
    if (plugin.file.empty()) {
      continue; // the program registers it
    }
    const std::string text = plugin.id + " " + plugin.version;
    if (std::find(plugins.begin(), plugins.end(), text) == plugins.end()) {
      plugins.push_back(text);
    }
  }
  return plugins;
}

int64_t state_bytes(const Session& session, const Weights& weights) {
  return StateBytes(session, weights).all();
}

std::string peak_text(std::optional<int64_t> stage, int64_t taken, int64_t planned) {
  return "  memory     " + (stage ? "stage " + std::to_string(*stage) + ": " : "") + "peak " +
         bytes_text(taken) + " of tensors in the first step" +
         (planned > 0 ? ", " + bytes_text(planned) + " planned" : "");
}

std::vector<std::string> option_notes(const Session& session) {
  const auto& optimizer = session.recipe.optimizer;
  std::vector<std::string> notes;
  if (optimizer.offload && session.device->device().is_cpu()) {
    notes.emplace_back(
        "optimizer.offload does nothing on the CPU: the optimizer's state is in host memory anyway"
    );
  }
  if (!optimizer.master_weights && session.dtype == at::kFloat) {
    notes.emplace_back("optimizer.master_weights = false does nothing: fp32 weights are their own");
  } else if (!optimizer.master_weights && !optimizer.stochastic_rounding) {
    notes.emplace_back(
        "warning: bf16 weights without masters lose updates below a 256th of a weight: set "
        "optimizer.stochastic_rounding"
    );
  }
  const int64_t vocab = session.architecture->vocab(), tokens = session.tokenizer->vocab();
  if (tokens > vocab && session.recipe.tree.find("tokenizer") != nullptr) {
    notes.push_back(
        "warning: the tokenizer " + session.recipe.tokenizer.use + " has " + grouped(tokens) +
        " tokens, and the model " + grouped(vocab) + ": an id above " + grouped(vocab - 1) +
        " ends the run where it comes"
    );
  }
  if (session.recipe.guards.compare_copies > 0 &&
      (session.mesh.world() == 1 || session.recipe.parallel.zero >= 3)) {
    notes.emplace_back("guards.compare_copies does nothing on one rank and under ZeRO-3: no "
                       "rank keeps a copy of another's weights");
  }
  return notes;
}

DevicePeak
device_peak(const Session& session, const std::function<double(at::ScalarType)>& measure) {
  const double listed = session.device->peak_flops(session.dtype);
  const bool programs = session.device->as_program_device() != nullptr;
  const bool measures = measure && session.device->device().is_cpu() && !programs;
  const bool of_plugin = place_of(*session.device, "peak_flops").plugin != nullptr;
  return listed > 0 ? DevicePeak{listed, of_plugin ? "as its plugin says" : "data sheet"}
         : measures ? DevicePeak{measure(session.dtype), "measured"}
                    : DevicePeak{};
}

std::vector<std::string> start_block(
    const Session& session,
    Host& host,
    const Weights& weights,
    const DevicePeak& peak,
    const std::vector<std::string>& plugins,
    const std::filesystem::path& folder,
    const SaveBytes& saves
) {
  std::string names;
  for (const auto& plugin : plugins) {
    names += (names.empty() ? "" : ", ") + plugin;
  }
  const auto& recipe = session.recipe;
  std::vector<std::string> lines{
      "megahost " MH_VERSION ", LibTorch " TORCH_VERSION,
      "  plugins    " + names,
      "  device     " + device_text(session, peak),
      "  layout     " + layout_text(session, host),
      "  model      " + model_text(session),
      "  precision  " + precision_text(session),
      "  batch      " + batch_text(session),
      "  memory     " + memory_text(session, weights, saves),
      "  data       " + summary_of(*session.corpus)};
  for (const std::string& detail : session.corpus->details()) {
    lines.push_back("             " + detail);
  }
  lines.push_back(
      "  run        " + recipe.name + ", " + counted(recipe.iterations(), "step") + ", in " +
      folder.string()
  );
  return lines;
}

} // namespace mh
