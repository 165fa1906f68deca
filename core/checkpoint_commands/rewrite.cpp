// megahost checkpoint import, average, export --to dcp: checkpoints written anew, tensor by tensor.

#include "core/base/number_text.hpp"
#include "core/base/printable.hpp"
#include "core/base/text.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/checkpoint/format.hpp"
#include "core/checkpoint/hf.hpp"
#include "core/checkpoint/outlined.hpp"
#include "core/checkpoint_commands/commands.hpp"
#include "core/checkpoint_commands/import_run.hpp"
#include "core/checkpoint_commands/saved.hpp"
#include "core/draw/report.hpp"
#include "core/foreign/dcp.hpp"
#include "core/formats/json.hpp"
#include "core/model/plugin_call.hpp"
#include "core/options/read.hpp"
#include "core/recipe/commands.hpp"
#include "core/session/run_tokenizer.hpp"
#include "core/storage/copy_object.hpp"
#include "core/storage/step_folder.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>

namespace mh {

namespace {

constexpr const char* kRunRecipe = "recipe.toml";
constexpr uint64_t kLongestRecipe = 64 << 20;

/// A checkpoint's tensors, one after the other in the same memory.
class InOnePlace {
public:
  explicit InOnePlace(CheckpointReader& saved)
      : saved_(saved) {}

  /// Good until the next is asked for.
  [[nodiscard]] at::Tensor operator()(const std::string& name) {
    const CheckpointTensor* tensor = saved_.find(name);
    MH_ASSERT(tensor != nullptr, "a tensor that the checkpoint has not");
    const auto bytes = static_cast<int64_t>(tensor_bytes(*tensor));
    if (!memory_.defined() || memory_.numel() < bytes) {
      memory_.reset(); // before there is more
      memory_ = at::empty({bytes}, at::kByte);
    }
    at::Tensor value = memory_.narrow(0, 0, bytes).view(tensor->dtype).view(tensor->shape);
    const Slice whole{name, tensor->shape, std::vector<int64_t>(tensor->shape.size()), value};
    saved_.read({&whole, 1});
    return value;
  }

private:
  CheckpointReader& saved_;
  at::Tensor memory_;
};

/// The tensors of a checkpoint, read when they are written.
OutlinedTensors
outlined(CheckpointReader& saved, bool weights_only, std::optional<at::ScalarType> dtype) {
  OutlinedTensors tensors;
  const std::vector<uint64_t> boxes = bytes_to_read(saved);
  for (size_t i = 0; i < boxes.size(); ++i) {
    const CheckpointTensor& tensor = saved.tensors()[i];
    if (tensor.is_weight || !weights_only) {
      const bool is_cast = dtype && tensor.is_weight && at::isFloatingType(tensor.dtype);
      const at::ScalarType written = is_cast ? *dtype : tensor.dtype;
      tensors.outlines.push_back({tensor.name, written, tensor.shape});
      const uint64_t cast = is_cast ? value_bytes(written, tensor.shape) : 0;
      tensors.at_once = std::max(tensors.at_once, tensor_bytes(tensor) + std::max(boxes[i], cast));
    }
  }
  tensors.value = [&saved, dtype, read = InOnePlace(saved)](const std::string& name) mutable {
    const at::Tensor value = read(name);
    return dtype && saved.find(name)->is_weight && value.is_floating_point() ? value.to(*dtype)
                                                                             : value;
  };
  return tensors;
}

/// The state of the run that saved a checkpoint; empty if none did.
nlohmann::json run_state(const CheckpointReader& saved) {
  const std::string text = saved.state();
  return text.empty() ? nlohmann::json::object() : parse_json(text, saved.path().string());
}

/// The recipe of a run goes along: `generate` and people read it.
void copy_recipe(Storage& storage, const Path& from, const Path& to) {
  if (storage.contains(from / kRunRecipe) && !storage.contains(to / kRunRecipe)) {
    put_text(storage, to / kRunRecipe, get_text(storage, from / kRunRecipe, kLongestRecipe));
    for (const Storage::Item& item : storage.list(from / kRunTokenizer)) {
      if (!item.is_prefix) {
        const Path name = Path(kRunTokenizer) / item.name;
        copy_object(storage, from / name, storage, to / name);
      }
    }
  }
}

/// The folder of a run's new steps.
StepFolder native_steps(Storage& storage, const Path& to) {
  return {storage, to / "checkpoints", kManifestName, warn};
}

void require_new_step(const StepFolder& steps, int64_t step, const Path& to) {
  const auto all = steps.steps();
  if (std::find(all.begin(), all.end(), step) != all.end()) {
    throw Error(
        to.string() + " holds a checkpoint of step " + std::to_string(step) + " already",
        "name another folder by -o",
        exit_code::data
    );
  }
}

std::vector<int64_t> steps_of_list(const std::string& list) {
  std::vector<int64_t> steps;
  std::string_view rest = list;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    int64_t step = 0;
    const auto [end, error] = std::from_chars(word.begin(), word.end(), step);
    if (error != std::errc() || end != word.end() || step < 0) {
      throw Error("--steps: " + printable(word) + " is no step", "give them as 800,900,1000");
    }
    steps.push_back(step);
  }
  return steps;
}

/// The checkpoints of which the mean is asked for, newest first.
std::vector<int64_t>
averaged_steps(const Invocation& invocation, std::vector<int64_t> there, const std::string& run) {
  if (invocation.has("--last") == invocation.has("--steps")) {
    throw Error(
        "checkpoint average needs either --last or --steps",
        "--last 3 takes the newest three checkpoints, --steps 800,900 those of these steps"
    );
  }
  if (invocation.has("--last")) {
    const int64_t count = number_option(invocation, "--last", 0, 1, 1'000'000);
    if (count > std::ssize(there)) {
      throw Error(
          run + " holds " + std::to_string(there.size()) + " checkpoints, fewer than --last " +
              std::to_string(count),
          "keep more of them by checkpoint.keep",
          exit_code::data
      );
    }
    there.resize(static_cast<size_t>(count));
    return there;
  }
  std::vector<int64_t> asked = steps_of_list(invocation.value("--steps"));
  std::sort(asked.rbegin(), asked.rend());
  if (std::adjacent_find(asked.begin(), asked.end()) != asked.end()) {
    throw Error("--steps names a step twice", "name each once");
  }
  for (const int64_t step : asked) {
    if (std::find(there.begin(), there.end(), step) == there.end()) {
      throw Error(
          run + " holds no checkpoint of step " + std::to_string(step),
          "megahost checkpoint ls " + shell_word(run) + " shows those that are there",
          exit_code::data
      );
    }
  }
  if (asked.empty()) {
    throw Error("--steps names no step", "give them as 800,900,1000");
  }
  return asked;
}

using OpenSteps = std::vector<std::unique_ptr<CheckpointReader>>;

/// The mean of a tensor over checkpoints, added up in float64; of whole numbers and booleans, which
/// have no mean, the value that all have.
at::Tensor mean_of(const OpenSteps& saved, const std::string& name) {
  const CheckpointTensor& first = *saved.front()->find(name);
  const bool is_float = at::isFloatingType(first.dtype);
  at::Tensor sum = whole_tensor(*saved.front(), name);
  sum = is_float ? sum.to(at::kDouble) : sum;
  for (size_t i = 1; i < saved.size(); ++i) {
    const CheckpointTensor* other = saved[i]->find(name);
    const bool is_alike =
        other != nullptr && other->shape == first.shape && other->dtype == first.dtype;
    if (!is_alike) {
      throw Error(
          saved[i]->path().string() + " has no tensor " + printable(name) + " like that of " +
              saved.front()->path().string(),
          "average checkpoints of one model",
          exit_code::data
      );
    }
    const at::Tensor value = whole_tensor(*saved[i], name);
    if (is_float) {
      sum.add_(value);
    } else if (!at::equal(value, sum)) {
      throw Error(
          saved[i]->path().string() + ": " + printable(name) + " is of whole numbers, and differs",
          "average checkpoints in which it is the same",
          exit_code::data
      );
    }
  }
  return is_float ? sum.div_(static_cast<double>(saved.size())).to(first.dtype) : sum;
}

/// Bytes of tensors that are in memory at a time while `mean_of` makes some, at most: the sum, a value,
/// and what reading it or adding it, which makes it float64, takes.
uint64_t mean_at_once(const OpenSteps& saved, const std::vector<TensorOutline>& outlines) {
  uint64_t most = 0;
  for (const auto& one : saved) {
    const std::vector<uint64_t> boxes = bytes_to_read(*one);
    for (const TensorOutline& outline : outlines) {
      const CheckpointTensor* tensor = one->find(outline.name);
      if (tensor == nullptr) {
        continue; // `mean_of` refuses it
      }
      const uint64_t bytes = tensor_bytes(*tensor);
      const uint64_t wide =
          at::isFloatingType(tensor->dtype) ? value_bytes(at::kDouble, tensor->shape) : 0;
      const uint64_t sum = one == saved.front() ? 0 : std::max(wide, bytes);
      const uint64_t box = boxes[index_of(*one, *tensor)];
      most = std::max(most, sum + bytes + std::max(box, wide));
    }
  }
  return most;
}

} // namespace

int export_as_dcp(const Saved& saved, const Invocation& invocation, Host& host) {
  const Path to = output_folder(invocation);
  Storage& storage = host.storage();
  if (storage.contains(to / kDcpMetadataName)) {
    throw Error(
        to.string() + " holds a checkpoint already", "name another folder by -o", exit_code::data
    );
  }
  (void)output_of_format(invocation, storage, {"__0_", kRunRecipe});
  OutlinedTensors tensors =
      outlined(*saved.reader, /*weights_only=*/false, dtype_named(invocation.value("--dtype")));
  tensors.file_bytes = file_bytes(invocation);
  say_needs("the export", tensors, to);
  uint64_t bytes = 0;
  {
    ByteProgress progress("exporting", tensors.bytes());
    tensors.progress = [&progress](uint64_t done) { progress(done); };
    bytes = write_dcp_tensors(storage, to, tensors, saved.reader->state());
  }
  copy_recipe(storage, invocation.arguments.front(), to);
  std::printf(
      "%s: %s tensors of %s for torch.distributed.checkpoint\n",
      to.c_str(),
      grouped(std::ssize(tensors.outlines)).c_str(),
      bytes_text(static_cast<int64_t>(bytes)).c_str()
  );
  return 0;
}

namespace {

/// Imports a checkpoint of another program, by the model that a recipe describes.
int import_with_recipe(const Invocation& invocation, const Path& to, Host& host) {
  const std::string& from = invocation.arguments.front();
  const Read read = read_resolved(invocation, host, invocation.value("--recipe"));
  Recipe recipe = read.resolved.recipe;
  recipe.parallel = {};
  StepFolder steps = native_steps(host.storage(), to);
  if (!steps.steps().empty()) {
    throw Error(
        to.string() + " holds checkpoints already", "name another folder by -o", exit_code::data
    );
  }
  const auto session =
      make_session(recipe, host, {.corpus = false, .initialise = false, .planned_for = at::kCPU});
  WeightsWanted wanted = weights_wanted(invocation);
  wanted.format = invocation.value("--format");
  ImportedRun imported = import_run(from, *session, host, wanted);
  imported.tensors.file_bytes = file_bytes(invocation);
  say_needs("the import", imported.tensors, to);
  {
    ByteProgress progress("importing", imported.tensors.bytes());
    imported.tensors.progress = [&progress](uint64_t done) { progress(done); };
    steps.recover();
    write_native_tensors(host.storage(), steps, imported.step, imported.state, imported.tensors);
  }
  const Path recipe_file = to / kRunRecipe;
  if (!host.storage().contains(recipe_file)) {
    put_text(
        host.storage(),
        recipe_file,
        show_recipe(read.resolved.recipe, RecipeFormat::toml, /*origins=*/true)
    );
    const PluginSection& tokenizer = read.resolved.recipe.tokenizer;
    const auto& schema = host.require(Kind::tokenizer, tokenizer.use).schema;
    keep_tokenizer(host.storage(), to, schema, tokenizer.options.as_table());
  }
  const std::string why =
      imported.unread.empty()
          ? ""
          : "; " + imported.unread +
                ": load it with Megatron-LM in the layout that saved it, and save it with "
                "--dist-ckpt-optim-fully-reshardable";
  std::printf(
      "%s: step %s, %s tensors of weights and %s of the optimizer's state, from %s%s%s\n",
      to.c_str(),
      grouped(imported.step).c_str(),
      grouped(static_cast<int64_t>(imported.weights)).c_str(),
      grouped(static_cast<int64_t>(imported.optimizer)).c_str(),
      imported.from.c_str(),
      why.c_str(),
      imported.optimizer > 0 ? "" : "; without it --resume cannot go on: begin a run with --weights"
  );
  return 0;
}

} // namespace

int command_checkpoint_import(const Invocation& invocation, Host& host) {
  return_freed_memory();
  const std::string& from = invocation.arguments.front();
  const Path to = output_folder(invocation);
  if (invocation.has("--recipe")) {
    return import_with_recipe(invocation, to, host);
  }
  const Saved saved = open_saved(invocation, from, host);
  if (saved.reader->names() != TensorNames::own) {
    throw Error(
        saved.reader->path().string() + " has the names of " + program_of(saved.reader->names()) +
            ", which a run's have not",
        "megahost run RECIPE --weights " + shell_word(from) +
            " reads it as it is, and --recipe RECIPE imports it; " +
            (saved.reader->names() == TensorNames::megatron
                 ? "megahost recipe import-args writes the recipe"
                 : "megahost recipe from-hf writes the recipe"),
        exit_code::data
    );
  }
  Storage& storage = host.storage();
  const nlohmann::json state = run_state(*saved.reader);
  const int64_t step = saved.step.value_or(
      state.contains("step") ? json_size(state, "step", saved.reader->path().string()) : 0
  );
  StepFolder steps = native_steps(storage, to);
  require_new_step(steps, step, to);
  OutlinedTensors tensors = outlined(*saved.reader, /*weights_only=*/false, std::nullopt);
  tensors.file_bytes = file_bytes(invocation);
  say_needs("the import", tensors, to);
  {
    ByteProgress progress("importing", tensors.bytes());
    tensors.progress = [&progress](uint64_t done) { progress(done); };
    write_native_tensors(storage, steps, step, state, tensors);
  }
  copy_recipe(storage, from, to);
  std::printf(
      "%s: %s tensors of %s, from %s\n",
      steps.path(step).c_str(),
      grouped(std::ssize(tensors.outlines)).c_str(),
      bytes_text(static_cast<int64_t>(tensors.bytes())).c_str(),
      saved.format.c_str()
  );
  return 0;
}

int command_checkpoint_average(const Invocation& invocation, Host& host) {
  return_freed_memory();
  const at::NoGradGuard no_grad;
  const std::string& run = invocation.arguments.front();
  const Path to = output_folder(invocation);
  const FolderFormat found = format_of(run, host, invocation.value("--format"));
  const auto& format = *found.format;
  const auto there = steps_of(format, run);
  if (!there) {
    throw Error(
        run + " is a " + format.about() + ", which has no steps", "give a run", exit_code::data
    );
  }
  const std::vector<int64_t> steps = averaged_steps(invocation, *there, run);
  OpenSteps saved;
  for (const int64_t step : steps) {
    saved.push_back(in_plugin(format, "open", [&] { return format.open(run, step); }));
  }
  Storage& storage = host.storage();
  StepFolder into = native_steps(storage, to);
  require_new_step(into, steps.front(), to);
  OutlinedTensors tensors = outlined(*saved.front(), /*weights_only=*/true, std::nullopt);
  tensors.at_once = mean_at_once(saved, tensors.outlines);
  tensors.value = [&saved](const std::string& name) { return mean_of(saved, name); };
  tensors.file_bytes = file_bytes(invocation);
  const nlohmann::json state = run_state(*saved.front());
  say_needs("the mean", tensors, to);
  {
    ByteProgress progress("averaging", tensors.bytes());
    tensors.progress = [&progress](uint64_t done) { progress(done); };
    write_native_tensors(storage, into, steps.front(), state, tensors);
  }
  copy_recipe(storage, run, to);
  std::vector<std::string> numbers;
  for (const int64_t step : std::vector(steps.rbegin(), steps.rend())) {
    numbers.push_back(std::to_string(step));
  }
  std::printf(
      "%s: the mean of %s tensors of %s %s\n",
      into.path(steps.front()).c_str(),
      grouped(std::ssize(tensors.outlines)).c_str(),
      numbers.size() == 1 ? "step" : "steps",
      join(numbers).c_str()
  );
  return 0;
}

} // namespace mh
