#include "megahost/context.hpp"

#include "core/model/recompute.hpp"
#include "megahost/error.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>

#include <algorithm>

namespace mh {

StepContext::StepContext(
    const Mesh& mesh,
    const Rules& rules,
    const Batch& batch,
    StepMode mode,
    std::shared_ptr<CachedTensors> cached
)
    : mesh_(&mesh)
    , rules_(&rules)
    , batch_(&batch)
    , mode_(std::move(mode))
    , cached_(std::move(cached)) {}

StepContext::StepContext(
    const StepContext& other,
    const Batch& batch,
    StepMode mode,
    std::shared_ptr<CachedTensors> cached
)
    : mesh_(other.mesh_)
    , rules_(other.rules_)
    , batch_(&batch)
    , mode_(std::move(mode))
    , cached_(std::move(cached))
    , sequence_(other.sequence_) {}

const at::Tensor& StepContext::array(std::string_view name) const {
  const auto found = batch_->arrays.find(name);
  if (found == batch_->arrays.end()) {
    std::string names;
    for (const auto& [other, tensor] : batch_->arrays) {
      names += (names.empty() ? "" : ", ") + other;
    }
    throw Error(
        "the model reads the array `" + std::string(name) + "`, but samples have only: " + names,
        "choose a corpus that supplies it",
        exit_code::data
    );
  }
  return found->second;
}

bool StepContext::has_array(std::string_view name) const {
  return batch_->arrays.find(name) != batch_->arrays.end();
}

SequenceScope StepContext::within(std::string_view sequence) {
  if (!sequence.empty() && !batch_->sequences.contains(sequence)) {
    throw Error(
        "the model reads the sequence `" + std::string(sequence) +
            "`, which samples of this corpus do not have",
        "choose a corpus that supplies it",
        exit_code::data
    );
  }
  return {sequence_, std::string(sequence)};
}

std::string StepContext::of_sequence(std::string_view array) const {
  return sequence_.empty() ? std::string(array) : sequence_ + "_" + std::string(array);
}

int64_t StepContext::seq() const {
  return sequence_.empty() ? batch_->seq : batch_->sequences.at(sequence_);
}

at::Tensor StepContext::positions() {
  const std::string name = of_sequence("positions");
  return has_array(name) ? array(name) : token_index().unsqueeze(1);
}

std::optional<at::Tensor> StepContext::segments() const {
  const std::string name = of_sequence("segments");
  return has_array(name) ? std::optional(array(name)) : std::nullopt;
}

std::vector<DocumentStart> StepContext::documents() const {
  const auto found = batch_->documents.find(of_sequence("segments"));
  return found == batch_->documents.end() ? std::vector<DocumentStart>() : found->second;
}

at::Tensor StepContext::token_index() {
  const std::string name = of_sequence("token_index");
  if (has_array(name)) {
    return array(name);
  }
  return cached("token_index", [&] {
    const auto options = batch_->arrays.begin()->second.options().dtype(at::kLong);
    std::vector<at::Tensor> runs;
    for (const auto& [first, count] : rules_->token_runs(seq(), *mesh_)) {
      runs.push_back(at::arange(first, first + count, options));
    }
    return runs.size() == 1 ? runs.front() : at::cat(runs);
  });
}

StepContext StepContext::again() const {
  return {*this, *batch_, mode_, cached_};
}

StepContext StepContext::apart(const Batch& batch) const {
  StepMode mode = mode_;
  mode.tokens_apart = true;
  mode.weight_queue = nullptr;
  mode.checking = false;
  mode.loss_count = nullptr; // losses of such a pass mean nothing
  return {*this, batch, std::move(mode), std::make_shared<CachedTensors>()};
}

KeepScope StepContext::keeping(const Keep& keep) {
  return {keep_, &keep};
}

Dims StepContext::dims(Axis last) const {
  return {{axis::seq, seq()}, {axis::batch, batch_->batch}, last};
}

Placement StepContext::place(Axis last, Tier upto) const {
  return rules_->place(dims(last), *mesh_, upto);
}

void StepContext::add_loss(Loss loss) {
  losses_.push_back(std::move(loss));
}

std::vector<Loss> StepContext::take_losses() {
  return std::exchange(losses_, {});
}

at::Tensor StepContext::count(const Loss& loss) const {
  return loss.over.empty() ? at::ones({}, loss.sum.options().requires_grad(false))
                           : array(loss.over).sum(at::kFloat);
}

std::optional<double> StepContext::loss_factor(const std::string& over, double weight) const {
  if (!mode_.loss_count) {
    return std::nullopt;
  }
  const double count = mode_.loss_count(over);
  return count > 0 ? weight / count * mode_.loss_scale : 0.0;
}

double StepContext::host_value(const at::Tensor& scalar, double assumed) const {
  return scalar.is_meta() ? assumed : scalar.item().toDouble();
}

std::vector<int64_t>
StepContext::host_values(const at::Tensor& counts, const std::vector<int64_t>& assumed) const {
  if (counts.is_meta()) {
    return assumed;
  }
  const at::Tensor host = counts.to(at::kCPU, at::kLong).contiguous();
  const auto* data = host.const_data_ptr<int64_t>();
  return {data, data + host.numel()};
}

const at::Tensor&
StepContext::cached(const std::string& key, const std::function<at::Tensor()>& make) {
  return cached(key, at::Tensor(), make);
}

const at::Tensor& StepContext::cached(
    const std::string& key, const at::Tensor& from, const std::function<at::Tensor()>& make
) {
  const std::string name = sequence_ + "/" + key;
  const auto [begin, end] = cached_->equal_range(name);
  const auto found =
      std::find_if(begin, end, [&](const auto& one) { return one.second.from.is_same(from); });
  if (found != end) {
    return found->second.value;
  }
  at::Tensor made = make(); // which may look something else up
  return cached_->emplace(name, CachedTensor{from, std::move(made)})->second.value;
}

bool StepContext::redoes(std::string_view part) const {
  return keep_ != nullptr && keep_->redoes(part);
}

at::Tensor StepContext::part(
    std::string_view name,
    const std::vector<at::Tensor>& inputs,
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& run
) {
  if (!redoes(name)) {
    return run(kept_inputs(inputs));
  }
  // Losses that the part adds come out with its result, since only what is returned carries
  // gradients.
  auto added = std::make_shared<std::vector<Loss>>();
  const auto results = recomputed(
      [this, run, added, sequence = sequence_](const std::vector<at::Tensor>& again) {
        const SequenceScope same(sequence_, sequence); // in backward, too
        auto before = std::exchange(losses_, {});
        std::vector<at::Tensor> outputs{run(again)};
        *added = std::exchange(losses_, std::move(before));
        for (const Loss& loss : *added) {
          outputs.push_back(loss.sum);
        }
        return outputs;
      },
      inputs
  );
  for (size_t i = 0; i < added->size(); ++i) {
    (*added)[i].sum = results[i + 1];
    add_loss(std::move((*added)[i]));
  }
  added->clear();
  return results[0];
}

at::Tensor StepContext::part(
    std::string_view name,
    const std::vector<at::Tensor>& inputs,
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& run,
    const std::function<at::Tensor(const at::Tensor&)>& reader
) {
  if (!redoes(name)) {
    return reader(run(kept_inputs(inputs)));
  }
  return recomputed_for(
      [this, run, sequence = sequence_](const std::vector<at::Tensor>& again) {
        const SequenceScope same(sequence_, sequence);
        return run(again);
      },
      inputs,
      reader
  );
}

} // namespace mh
