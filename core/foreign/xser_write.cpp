#include "core/base/in_order.hpp"
#include "core/base/printable.hpp"
#include "core/foreign/torch_tensors.hpp"
#include "core/foreign/xser.hpp"
#include "core/foreign/xser_names.hpp"
#include "core/formats/pickle.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <map>

namespace mh {

namespace {

constexpr std::string_view kOutputLayer = "lm_head.weight";
constexpr std::string_view kInputEmbedding = "model.embed_tokens.weight";

/// A tensor of theirs that is to be written: each rank's part is joined of parts of these.
struct XserPlan {
  const XserTensor* known = nullptr;
  std::vector<std::string> of;
};

[[noreturn]] void refuse_xser(const std::string& why, const std::string& hint) {
  throw Error("NeuronX Distributed " + why, hint, exit_code::data);
}

/// Their tensors of a model, by name.
std::map<std::string, XserPlan> xser_plans(const std::vector<TensorOutline>& outlines) {
  std::map<std::string, XserPlan> plans;
  const auto add = [&plans](const std::string& name) {
    for (const XserTensor& known : xser_tensors()) {
      const size_t count = std::max<size_t>(1, known.parts.size());
      for (size_t i = 0; known.is_written && i < count; ++i) {
        const auto before =
            before_ending(name, known.parts.empty() ? known.ending : known.parts[i]);
        if (before) {
          XserPlan& plan = plans[*before + std::string(known.ending)];
          plan.known = &known;
          plan.of.resize(count);
          plan.of[i] = name;
          return true;
        }
      }
    }
    return false;
  };
  for (const TensorOutline& outline : outlines) {
    if (!add(outline.name)) {
      refuse_xser(
          "has no tensor " + printable(outline.name) + " in its Llama",
          "models with Llama's tensors are exported --to xser, and others as a Hugging Face folder"
      );
    }
  }
  for (const auto& [name, plan] : plans) {
    if (std::find(plan.of.begin(), plan.of.end(), "") != plan.of.end()) {
      refuse_xser(
          "joins two tensors in " + printable(name) + ", and the model has one of them",
          "export a Hugging Face folder"
      );
    }
  }
  if (const auto tied = plans.find(std::string(kInputEmbedding));
      tied != plans.end() && !plans.contains(std::string(kOutputLayer))) {
    add(std::string(kOutputLayer));
    plans.at(std::string(kOutputLayer)).of = {std::string(kInputEmbedding)};
  }
  return plans;
}

/// The first layer of each stage: what does not divide goes to the last ones.
std::vector<int64_t> first_layers(int64_t layers, int64_t stages) {
  std::vector<int64_t> first;
  int64_t at = 0;
  for (int64_t p = 0; p < stages; ++p) {
    first.push_back(at);
    at += layers / stages + (p >= stages - layers % stages ? 1 : 0);
  }
  return first;
}

/// The texts of a rank's file and of its `.info.pt`.
class XserIndex {
public:
  XserIndex() {
    names_.mark();
    info_.mark();
  }

  [[nodiscard]] int64_t next() const { return count_; }

  void add(const std::string& name, const at::Tensor& part) {
    names_.text(name).global("torch_xla.utils.serialization", "TensorReference");
    names_.mark().tuple().make().mark().text("tid").integer(count_).dict().build();
    info_.integer(count_).mark();
    info_.text("dtype").global("torch", torch_dtype_name(dtype_of(part.scalar_type())));
    info_.text("shape").global("torch", "Size").mark().integers(part.sizes().vec()).tuple();
    info_.reduce().text("expert_model_parallel").boolean(false).dict();
    ++count_;
  }

  [[nodiscard]] std::string names() { return torch_file_of(names_.dict().finish()); }

  [[nodiscard]] std::string info() { return torch_file_of(info_.dict().finish()); }

private:
  PickleWriter names_, info_;
  int64_t count_ = 0;
};

/// A rank's part of a tensor of theirs.
at::Tensor
part_of_rank(const std::vector<at::Tensor>& values, int64_t dim, int64_t rank, int64_t ranks) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& value : values) {
    const int64_t size = dim < 0 ? 0 : value.size(dim) / ranks;
    parts.push_back(dim < 0 ? value : value.narrow(dim, rank * size, size));
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

/// Staggered: `writers` tensor-parallel ranks at a time.
template <class Write>
void for_each_rank(const XserLayout& layout, const Write& write) {
  int64_t next = 0;
  in_order(
      static_cast<size_t>(std::min(layout.writers, layout.tensor)),
      [&] { return next < layout.tensor ? std::optional(next++) : std::nullopt; },
      [&](int64_t rank) {
        const at::NoGradGuard no_grad; // each thread has its own
        write(rank);
        return rank;
      },
      [](int64_t) {}
  );
}

} // namespace

uint64_t write_xser(
    Storage& storage,
    const Path& folder,
    int64_t step,
    const OutlinedTensors& tensors,
    const XserLayout& layout,
    const std::string& config
) {
  const at::NoGradGuard no_grad;
  const auto plans = xser_plans(tensors.outlines);
  std::map<std::string, const TensorOutline*> outlines;
  int64_t layers = 0;
  for (const TensorOutline& outline : tensors.outlines) {
    outlines[outline.name] = &outline;
    layers = std::max(layers, hf_layer(outline.name) + 1);
  }
  if (layers < layout.pipeline) {
    refuse_xser(
        "puts a layer or more on each pipeline stage, and the model has " + std::to_string(layers) +
            " of them for " + std::to_string(layout.pipeline) + " stages",
        "name fewer by --pipeline"
    );
  }
  for (const auto& [name, plan] : plans) {
    for (const std::string& of : plan.of) {
      const auto& shape = outlines.at(of)->shape;
      const int64_t dim = plan.known->dim;
      if (dim >= std::ssize(shape) ||
          (dim >= 0 && shape[static_cast<size_t>(dim)] % layout.tensor != 0)) {
        refuse_xser(
            "splits dimension " + std::to_string(dim) + " of " + printable(of) + " of the shape " +
                shape_text(shape) + " over " + std::to_string(layout.tensor) + " ranks",
            "name a divisor by --tensor; a vocabulary is padded by model.vocab"
        );
      }
    }
  }
  const Path directory = folder / xser_folder(step);
  put_text(storage, directory / kXserBegun, "1");
  const std::vector<int64_t> first = first_layers(layers, layout.pipeline);
  std::vector<XserIndex> indices(static_cast<size_t>(layout.pipeline));
  uint64_t done = 0;
  for (const auto& [name, plan] : plans) {
    const int64_t layer = hf_layer(name);
    const auto stage = layer >= 0 ? std::ranges::upper_bound(first, layer) - first.begin() - 1
                       : name == kInputEmbedding ? 0
                                                 : layout.pipeline - 1;
    XserIndex& index = indices[static_cast<size_t>(stage)];
    std::vector<at::Tensor> values;
    for (const std::string& of : plan.of) {
      values.push_back(tensors.value(of));
      done += values.back().nbytes();
    }
    const std::string file = ".tensors/tensor_" + std::to_string(index.next()) + ".pt";
    const auto part_of = [&, dim = plan.known->dim](int64_t rank) {
      return part_of_rank(values, dim, rank, layout.tensor);
    };
    for_each_rank(layout, [&](int64_t rank) {
      put_torch_tensor(storage, directory / (xser_file(rank, stage) + file), part_of(rank));
    });
    index.add(name, part_of(0));
    tensors.progress(done);
  }
  for (int64_t p = 0; p < layout.pipeline; ++p) {
    XserIndex& index = indices[static_cast<size_t>(p)];
    const std::string names = index.names();
    const std::string info = index.info();
    for (int64_t t = 0; t < layout.tensor; ++t) {
      put_text(storage, directory / xser_file(t, p), names);
      put_text(storage, directory / (xser_file(t, p) + ".info.pt"), info);
    }
  }
  put_text(storage, directory / "config.json", config);
  put_text(storage, directory / kXserDone, "1"); // last: now it is whole
  return done;
}

} // namespace mh
