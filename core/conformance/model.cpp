#include "core/conformance/model.hpp"

#include "core/checkpoint/tensors.hpp"
#include "core/conformance/check.hpp"
#include "core/conformance/instance.hpp"
#include "core/formats/crc32c.hpp"
#include "megahost/nn/decoder.hpp"
#include "megahost/shuffle.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace mh::check {

namespace {

/// The first tokens of two documents and of padding in a sequence of a batch.
struct Documents {
  int64_t length, second, padding;
};

Documents documents(int64_t length) {
  return {length, length * kSecondDocument / kSeq, length * kPadding / kSeq};
}

/// "segments" and "positions", [length, kBatch].
void add_documents(
    Batch& batch, const std::string& prefix, const Documents& all, at::Device device
) {
  const at::Tensor index =
      at::arange(all.length, at::kLong).unsqueeze(1).expand({all.length, kBatch});
  const at::Tensor second = index.ge(all.second), padding = index.ge(all.padding);
  const at::Tensor segments = second.to(at::kLong) + padding.to(at::kLong);
  const at::Tensor begin =
      second.to(at::kLong) * all.second + padding.to(at::kLong) * (all.padding - all.second);
  batch.arrays[prefix + "segments"] = segments.contiguous().to(device);
  batch.arrays[prefix + "positions"] = (index - begin).contiguous().to(device);
}

} // namespace

Batch small_batch(const Architecture& architecture, at::Device device, bool packed) {
  const auto vocab = static_cast<uint64_t>(architecture.vocab());
  const auto ids = [&](int64_t length, int64_t first) { // [B, S] -> [S, B]
    at::Tensor made = at::empty({kBatch, length}, at::kLong);
    auto* id = made.data_ptr<int64_t>();
    for (int64_t i = 0; i < made.numel(); ++i) {
      id[i] = static_cast<int64_t>(mix(static_cast<uint64_t>(first + i)) % vocab);
    }
    return made.t().contiguous().to(device);
  };
  Batch batch;
  batch.seq = kSeq;
  batch.batch = kBatch;
  batch.samples = {0, 1};
  for (const ArraySpec& spec : architecture.arrays(kSeq)) {
    if (spec.type == ArraySpec::Type::int64) { // a label is the next token
      const at::Tensor made = ids(spec.length, spec.name == "labels" ? 1 : 0);
      batch.arrays[spec.name] = spec.below > 0 ? made.remainder(spec.below) : made;
    } else {
      batch.arrays[spec.name] = at::ones({spec.length, kBatch}, device);
    }
  }
  if (packed) {
    add_documents(batch, "", documents(kSeq), device);
    if (const auto found = batch.arrays.find("loss_mask"); found != batch.arrays.end()) {
      at::Tensor mask = found->second;
      mask.slice(0, kPadding).zero_();
      mask[kPadding - 1].zero_();
      mask[kSecondDocument - 1].zero_();
    }
  }
  add_shifted(architecture.shifted_arrays(), batch.arrays);
  batch.sequences = architecture.sequences();
  for (const auto& [name, length] : batch.sequences) {
    batch.arrays[name + "_tokens"] = ids(length, 1000);
    if (packed) {
      add_documents(batch, name + "_", documents(length), device);
    }
  }
  return batch;
}

SmallModel::SmallModel(const Architecture& architecture, const SmallModelArgs& args)
    : rules(args.rules)
    , batch(small_batch(architecture, args.device, args.packed))
    , model(std::make_unique<Model>(
          architecture,
          Builder::Args{
              .mesh = &mesh,
              .rules = &rules,
              .device = args.device,
              .dtype = args.dtype,
              .seed = args.seed,
              .seq = kSeq,
              .microbatch = kBatch},
          args.policy
      ))
    , gradients(
          std::make_unique<Gradients>(model->parameters(), mesh, GradientOptions{.overlap = false})
      ) {}

at::Tensor SmallModel::loss() {
  context = std::make_unique<StepContext>(mesh, rules, batch);
  (void)model->forward(*context);
  if (context->losses().empty()) {
    fail(
        "its head adds no loss to a batch that has labels and a loss mask",
        "call context.add_loss in the head's forward"
    );
  }
  at::Tensor total;
  for (const Loss& loss : context->losses()) {
    const at::Tensor part = loss.sum * loss.weight / context->count(loss);
    total = total.defined() ? total + part : part;
  }
  return total;
}

double SmallModel::train_once() {
  gradients->begin(/*microbatches=*/1);
  gradients->clear();
  const at::Tensor total = loss();
  backward(total);
  return total.item().toDouble();
}

std::vector<at::Tensor> SmallModel::values() const {
  std::vector<at::Tensor> values;
  for (const Parameter& parameter : model->parameters().all()) {
    values.push_back(parameter.value.detach());
  }
  return values;
}

std::unique_ptr<Architecture> small_decoder(int64_t layers) {
  DecoderConfig config;
  config.layers = layers;
  config.hidden = 16;
  config.heads = 2;
  return std::make_unique<Decoder>(config, Architecture::Args{.vocab = kVocab, .seq_length = kSeq});
}

std::vector<UpdateItem> small_items(const Optimizer& optimizer, at::Device device) {
  const at::Tensor line = at::arange(-6, 6, at::kFloat) / 4 + 0.1;
  std::vector<UpdateItem> items;
  for (const at::Tensor& weight : {line.view({3, 4}).clone(), line.slice(0, 0, 5).clone()}) {
    UpdateItem item;
    item.name = weight.dim() == 2 ? "matrix" : "vector";
    item.weight = weight.to(device);
    item.gradient = at::zeros_like(item.weight);
    for (const StateSpec& spec : optimizer.state_of(item.name, item.weight.sizes().vec())) {
      const auto shape = spec.shape.empty() ? item.weight.sizes() : at::IntArrayRef(spec.shape);
      item.state.push_back(at::zeros(shape, item.weight.options().dtype(spec.dtype)));
    }
    if (optimizer.keeps_other_weights()) {
      item.parameter = item.weight.clone();
    }
    items.push_back(std::move(item));
  }
  return items;
}

std::string bits(const std::vector<at::Tensor>& tensors) {
  uint32_t sum = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor plain = tensor.detach().to(at::kCPU).contiguous();
    std::string shape = std::string(c10::toString(plain.scalar_type()));
    for (const int64_t size : plain.sizes()) {
      shape += " " + std::to_string(size);
    }
    sum = crc32c(bytes_of(plain), crc32c(shape, sum));
  }
  return crc_text(sum);
}

} // namespace mh::check
