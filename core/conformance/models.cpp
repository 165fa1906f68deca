// Tests of models and of what trains them, on models of a few hundred weights.

#include "core/conformance/instance.hpp"
#include "core/conformance/model.hpp"
#include "core/conformance/tests.hpp"
#include "core/kernels/ops.hpp"
#include "core/model/plugin_call.hpp"
#include "core/plan/shapes_missing.hpp"
#include "core/step/batches.hpp"
#include "core/storage/temporary_folder.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace mh::check {

namespace fs = std::filesystem;

namespace {

std::string text(at::IntArrayRef sizes) {
  std::string result = "[";
  for (const int64_t size : sizes) {
    result += (result.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return result + "]";
}

std::string text(const at::Tensor& tensor) {
  return text(tensor.sizes()) + " " + c10::toString(tensor.scalar_type());
}

/// An activation on one rank has the sizes of its dimensions.
void check_state(const State& state, at::ScalarType dtype, const std::string& block) {
  for (const auto& [name, activation] : state) {
    std::vector<int64_t> sizes;
    for (const Axis& axis : activation.dims) {
      sizes.push_back(axis.elements());
    }
    const at::Tensor& value = activation.value;
    if (value.sizes() != at::IntArrayRef(sizes)) {
      fail(
          block + " returns \"" + name + "\" " + text(value) + ", but its dimensions say " +
              text(at::IntArrayRef(sizes)),
          "name the axes of what it returns (megahost/axis.hpp)"
      );
    }
    if (value.is_floating_point() && value.scalar_type() != dtype) {
      fail(
          block + " returns \"" + name + "\" " + text(value) + " in a model of " +
              c10::toString(dtype),
          "convert back to the input's dtype"
      );
    }
  }
}

void check_blocks(const Architecture& architecture, at::ScalarType dtype, bool packed) {
  const at::NoGradGuard no_grad;
  const Mesh mesh;
  const Rules rules;
  ParameterStore store;
  Builder builder(
      store,
      {.mesh = &mesh,
       .rules = &rules,
       .dtype = dtype,
       .seq = kSeq,
       .microbatch = kBatch,
       .sequences = architecture.sequences()}
  );
  Batch batch = small_batch(architecture, at::kCPU, packed);
  StepContext labelled(mesh, rules, batch);
  State state;
  const auto run = [&](const std::string& name, const auto& make) {
    const auto scope = builder.scope(name);
    const std::unique_ptr<Block> block =
        in_plugin(place_of(architecture, "making", name.c_str()), make);
    state = in_plugin(place_of(architecture, "forward", name.c_str()), [&] {
      return block->forward(state, labelled);
    });
    check_state(state, dtype, "block " + name);
  };
  run("embedding", [&] { return architecture.embedding(builder); });
  for (int64_t i = 0; i < architecture.layers(); ++i) {
    run("layers." + std::to_string(i), [&] { return architecture.layer(i, builder); });
  }
  const auto scope = builder.scope("head");
  const auto head = in_plugin(place_of(architecture, "making", "head"), [&] {
    return architecture.head(builder);
  });
  const auto ahead = [&](StepContext& context) {
    return in_plugin(place_of(architecture, "forward", "head"), [&] {
      return head->forward(state, context);
    });
  };
  (void)ahead(labelled);
  if (labelled.losses().empty()) {
    fail("its head adds no loss to a batch with labels", "call context.add_loss");
  }
  for (const Loss& loss : labelled.losses()) {
    if (loss.sum.numel() != 1 || !std::isfinite(loss.sum.item().toDouble())) {
      fail("its loss \"" + loss.name + "\" is " + text(loss.sum) + ", expected one finite number");
    }
    (void)labelled.count(loss);
  }
  batch.arrays.erase("labels");
  StepContext bare(mesh, rules, batch);
  const State scores = ahead(bare);
  const std::vector<int64_t> expected{kSeq, kBatch, architecture.vocab()};
  for (const std::string& name : architecture.outputs()) {
    if (!scores.has(name)) {
      fail(
          "without labels its head returns no \"" + name + "\"",
          "set it in the state, or name what it sets in `outputs()`"
      );
    }
    const at::Tensor& value = scores[name].value;
    if (name == "logits" && value.sizes() != at::IntArrayRef(expected)) {
      fail(
          "without labels its head returns \"logits\" " + text(value) + ", expected " +
          text(at::IntArrayRef(expected))
      );
    }
  }
}

void check_update(const Optimizer& optimizer) {
  auto items = small_items(optimizer, at::kCPU);
  const auto before = small_items(optimizer, at::kCPU);
  std::vector<const void*> places;
  for (const UpdateItem& item : items) {
    places.push_back(item.weight.const_data_ptr());
  }
  for (int64_t step = 1; step <= 2; ++step) { // the first may only begin, as SOAP's does
    for (UpdateItem& item : items) {
      item.gradient = item.weight + 0.5;
    }
    optimizer.update(items, {.step = step, .lr = 0.01});
  }
  for (size_t i = 0; i < items.size(); ++i) {
    const auto same = [&](const at::Tensor& a, const at::Tensor& b, const std::string& what) {
      if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
        fail("an update makes " + what + " of " + text(b) + " " + text(a));
      }
    };
    same(items[i].weight, before[i].weight, "a weight");
    for (size_t s = 0; s < items[i].state.size(); ++s) {
      same(
          items[i].state[s],
          before[i].state[s],
          "state " + optimizer.state_of(items[i].name, items[i].weight.sizes().vec())[s].name
      );
    }
    if (items[i].weight.const_data_ptr() != places[i] || items[i].weight.equal(before[i].weight)) {
      fail(
          "two updates leave the weight as it was", "change item.weight in place: sub_, mul_, copy_"
      );
    }
  }
}

} // namespace

void forward_shape_and_dtype(const Case& c) {
  if (c.entry->kind == Kind::architecture) {
    const auto architecture = make<Architecture>(c);
    check_blocks(*architecture, at::kFloat, /*packed=*/false);
    check_blocks(*architecture, at::kFloat, /*packed=*/true);
    check_blocks(*architecture, at::kBFloat16, /*packed=*/true);
  } else if (c.entry->kind == Kind::optimizer) {
    check_update(*make<Optimizer>(c));
  } else {
    const auto corpus = make<Corpus>(c);
    if (corpus->size(Split::train) < 1 || corpus->size(Split::test) != 0) {
      fail(
          "with split = [75, 25, 0] it has " + std::to_string(corpus->size(Split::train)) +
              " samples for training and " + std::to_string(corpus->size(Split::test)) +
              " for testing, expected some and 0",
          "let `size` follow the split's shares, 0 where a share is 0"
      );
    }
  }
}

/// The loss's slope along single weights, by central differences, in float64.
void grad_check(const Case& c) {
  const auto architecture = make<Architecture>(c);
  SmallModel model(*architecture, {.dtype = at::kDouble});
  (void)model.train_once();
  const bool exact = model.loss().scalar_type() == at::kDouble;
  const double step = exact ? 1e-6 : 1e-2, tolerance = exact ? 1e-6 : 2e-2;
  for (Parameter& parameter : model.model->parameters().all()) {
    const at::Tensor gradient = parameter.main_grad.contiguous().view({-1});
    const int64_t steepest = gradient.abs().argmax().item<int64_t>();
    at::Tensor weights = parameter.value.detach().view({-1});
    for (const int64_t i : {steepest, steepest / 2}) {
      const double kept = weights[i].item<double>(), exact_slope = gradient[i].item<double>();
      weights[i].fill_(kept + step);
      const double above = model.loss().item().toDouble();
      weights[i].fill_(kept - step);
      const double below = model.loss().item().toDouble();
      weights[i].fill_(kept);
      const double slope = (above - below) / (2 * step);
      if (std::abs(slope - exact_slope) > tolerance * std::max(1.0, std::abs(slope))) {
        fail(
            "the gradient of " + parameter.pieces.front().name + " is " +
                std::to_string(exact_slope) + " at element " + std::to_string(i) +
                ", the loss's slope there is " + std::to_string(slope),
            "look for detach(), no_grad, or a backward of your own"
        );
      }
    }
  }
}

namespace {

class Momentum : public Optimizer {
public:
  [[nodiscard]] std::vector<StateSpec> state() const override { return {{"momentum"}}; }

  void update(std::span<UpdateItem> items, const Update& update) const override {
    for (UpdateItem& item : items) {
      item.weight.sub_(item.state[0].mul_(0.9).add_(item.gradient), update.lr);
    }
  }
};

/// The bytes of all tensor files below `run`.
std::string tensors_below(const fs::path& run) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(run)) {
    if (entry.path().extension() == ".safetensors") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::string all;
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    all.append(std::istreambuf_iterator<char>(in), {});
  }
  return all;
}

/// Two steps, a save, and two more, against another model and optimizer that load in between.
void check_resume(
    const Architecture& one,
    const Architecture& other,
    const Optimizer& first,
    const Optimizer& second
) {
  const TemporaryFolder folder("megahost-check");
  const fs::path whole = folder.path() / "whole", again = folder.path() / "again";
  const auto train = [](SmallModel& model, TrainedWeights& weights, int64_t from) {
    for (int64_t step = from; step < from + 2; ++step) {
      (void)model.train_once();
      weights.update({.step = step, .lr = 0.01});
    }
  };
  SmallModel model(one, {.seed = 1}), loaded(other, {.seed = 2});
  TrainedWeights weights(*model.gradients, first), resumed(*loaded.gradients, second);
  train(model, weights, 1);
  weights.save(whole, 2);
  resumed.load(whole);
  resumed.save(again, 2);
  if (tensors_below(whole) != tensors_below(again)) {
    fail("saved, loaded and saved again, its tensors are others");
  }
  train(model, weights, 3);
  train(loaded, resumed, 3);
  weights.save(whole, 4);
  resumed.save(again, 4);
  if (tensors_below(whole) != tensors_below(again)) {
    fail(
        "two steps after a resume its weights are not those of a run that went on",
        "keep all that training changes in parameters and state(), and count by update.step"
    );
  }
}

} // namespace

void state_reproducible(const Case& c) {
  const Momentum plain;
  if (c.entry->kind == Kind::architecture) {
    const auto one = make<Architecture>(c), other = make<Architecture>(c);
    check_resume(*one, *other, plain, plain);
  } else {
    const auto model = small_decoder();
    const auto one = make<Optimizer>(c), other = make<Optimizer>(c);
    check_resume(*model, *model, *one, *other);
  }
}

namespace {

/// A step on the Meta device.
void check_on_meta(const Architecture& architecture, bool packed) {
  SmallModel model(architecture, {.device = at::kMeta, .packed = packed});
  const at::Tensor loss = model.loss();
  if (!loss.is_meta()) {
    fail(
        "its loss lies on " + loss.device().str() + " in a model on the Meta device",
        "make tensors on the device of the inputs: x.new_zeros, at::zeros(sizes, x.options())"
    );
  }
  backward(loss);
  const SmallModel real(architecture, {});
  if (model.model->parameters().global_elements() != real.model->parameters().global_elements()) {
    fail("it has other parameters on the Meta device than on the CPU");
  }
}

} // namespace

/// Fails a part whose operators lack a shape function there, or that reads a value on the host.
void meta_device(const Case& c) {
  ops::ensure_registered(); // our shape functions are those of plans, too
  naming_missing_shapes([&] {
    if (c.entry->kind == Kind::optimizer) {
      const auto optimizer = make<Optimizer>(c);
      auto items = small_items(*optimizer, at::kMeta);
      in_plugin(*optimizer, "update", [&] { optimizer->update(items, {.step = 1, .lr = 0.01}); });
      return;
    }
    const auto architecture = make<Architecture>(c);
    check_on_meta(*architecture, /*packed=*/false);
    check_on_meta(*architecture, /*packed=*/true);
  });
}

} // namespace mh::check
