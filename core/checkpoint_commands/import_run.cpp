#include "core/checkpoint_commands/import_run.hpp"

#include "core/checkpoint/assembled.hpp"
#include "core/checkpoint/format.hpp"
#include "core/step/weights.hpp"
#include "core/train/checkpointing.hpp"
#include "core/train/foreign_state.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>

namespace mh {

namespace {

/// The same view of another tensor.
at::Tensor view_as(const at::Tensor& view, const at::Tensor& of) {
  return of.as_strided(view.sizes(), view.strides(), view.storage_offset());
}

/// The slices that fill a tensor, as views of it in place of one of the Meta device.
MappedSlices slices_into(const at::Tensor& value, MappedSlices slices) {
  for (Slice& one : slices.slices) {
    one.local = view_as(one.local, value);
  }
  for (JoinedSlice& one : slices.joined) {
    one.own = view_as(one.own, value);
  }
  for (PackedSlice& one : slices.packed) {
    one.own = view_as(one.own, value);
  }
  return slices;
}

} // namespace

ImportedRun import_run(
    const std::filesystem::path& folder, Session& session, Host& host, const WeightsWanted& wanted
) {
  const at::NoGradGuard no_grad;
  session.allocate_gradients();
  const Weights weights(
      *session.gradients, *session.optimizer, weight_options(session.recipe, session.mesh)
  );
  auto later = std::make_shared<LaterWeights>();
  WeightsWanted all = wanted;
  all.weights = &weights;
  all.later = [&later](LaterWeights given) { *later = std::move(given); };
  const GivenWeights given = load_weights(folder, session, host, all);
  const Progress progress = foreign_progress(session, given, host);
  ImportedRun imported{
      .state = nlohmann::json::parse(state_text(progress)),
      .step = progress.step,
      .from = given.description};
  if (!given.has_optimizer && !given.arguments.empty()) {
    imported.unread = nlohmann::json::parse(given.arguments).value(kUnreadState, "");
  }
  const std::vector<uint64_t> largest = largest_boxes(*later->saved);
  auto dtypes = std::make_shared<std::map<std::string, TensorOutline>>();
  OutlinedTensors& tensors = imported.tensors;
  for (const Weights::Stored& stored : weights.stored()) {
    const bool is_weight = stored.name == stored.piece->name;
    if (stored.data.numel() == 0 || (!is_weight && !given.has_optimizer)) {
      continue;
    }
    ++(is_weight ? imported.weights : imported.optimizer);
    const TensorOutline outline{stored.name, stored.data.scalar_type(), stored.piece->global_shape};
    const auto slices = later->slices.find(stored.name);
    MH_ASSERT(slices != later->slices.end(), "nothing fills " + stored.name);
    tensors.at_once = std::max(
        tensors.at_once,
        value_bytes(outline.dtype, outline.shape) +
            bytes_to_read(*later->saved, slices->second, largest)
    );
    tensors.outlines.push_back(outline);
    (*dtypes)[stored.name] = outline;
  }
  tensors.value = [later, dtypes](const std::string& name) {
    const TensorOutline& outline = dtypes->at(name);
    const at::Tensor value = at::empty(outline.shape, at::TensorOptions(outline.dtype));
    read_mapped(*later->saved, slices_into(value, later->slices.at(name)));
    return value;
  };
  return imported;
}

} // namespace mh
