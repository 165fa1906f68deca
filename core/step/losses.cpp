#include "core/step/losses.hpp"

#include "core/mesh/agree.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace mh {
namespace {

void sum_over_tokens(const Mesh& mesh, at::Tensor tensor) {
  mesh.group(MeshAxis::dp).all_reduce(tensor);
  mesh.group(MeshAxis::cp).all_reduce(tensor);
}

/// Each pipeline stage has what its own blocks add; all get to know all. Values travel as bits, for
/// JSON has no NaN.
std::vector<nlohmann::json> of_all_stages(const Mesh& mesh, const nlohmann::json& own) {
  const auto texts = together(ranks_of(mesh.group(MeshAxis::pp)), [&] { return own.dump(); });
  std::vector<nlohmann::json> all;
  for (const auto& text : texts) {
    for (const auto& item : nlohmann::json::parse(text)) {
      all.push_back(item);
    }
  }
  return all;
}

uint64_t bits(double value) {
  return std::bit_cast<uint64_t>(value);
}

double from_bits(const nlohmann::json& json) {
  return std::bit_cast<double>(json.get<uint64_t>());
}

std::vector<LossValue> losses_of_all_stages(const Mesh& mesh, const std::vector<LossValue>& own) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& loss : own) {
    list.push_back({loss.name, bits(loss.value), loss.count, loss.main});
  }
  std::vector<LossValue> all;
  for (const auto& item : of_all_stages(mesh, list)) {
    const std::string name = item[0];
    const double value = from_bits(item[1]);
    const auto known = std::find_if(all.begin(), all.end(), [&](const LossValue& loss) {
      return loss.name == name;
    });
    if (known == all.end()) {
      all.push_back({name, value, item[2], item[3]});
    } else {
      known->value += value;
    }
  }
  return all;
}

std::vector<MetricValue>
metrics_of_all_stages(const Mesh& mesh, const std::vector<MetricValue>& own) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& metric : own) {
    nlohmann::json values = nlohmann::json::array();
    for (const double value : metric.values) {
      values.push_back(bits(value));
    }
    list.push_back({metric.name, values});
  }
  std::vector<MetricValue> all;
  for (const auto& item : of_all_stages(mesh, list)) {
    auto& metric = all.emplace_back(MetricValue{item[0], {}});
    for (const auto& value : item[1]) {
      metric.values.push_back(from_bits(value));
    }
  }
  return all;
}

/// The numbers of each tensor, all of one device, from which they come by one copy. In a plan all
/// are 1.
std::vector<std::vector<double>> numbers_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<double>> numbers;
  if (tensors.empty() || tensors.front().is_meta()) {
    for (const auto& tensor : tensors) {
      numbers.emplace_back(static_cast<size_t>(tensor.numel()), 1.0);
    }
    return numbers;
  }
  std::vector<at::Tensor> parts;
  for (const auto& tensor : tensors) {
    parts.push_back(tensor.reshape({-1}).to(at::kDouble));
  }
  at::Tensor joined = at::cat(parts);
  if (!joined.is_cpu()) {
    const auto host = at::TensorOptions(at::kDouble).pinned_memory(joined.is_cuda());
    joined = at::empty(joined.sizes(), host).copy_(joined);
  }
  const auto* next = joined.const_data_ptr<double>();
  for (const auto& part : parts) {
    numbers.emplace_back(next, next + part.numel());
    next += part.numel();
  }
  return numbers;
}

} // namespace

double number_of(const at::Tensor& scalar) {
  return scalar.is_meta() ? 1.0 : scalar.item<double>();
}

double LossCounts::of(const std::string& over) {
  if (const auto known = counts_.find(over); known != counts_.end()) {
    return known->second;
  }
  double count = 0;
  for (const auto& batch : microbatches_) {
    if (over.empty()) {
      count += 1;
      continue;
    }
    const auto array = batch.arrays.find(over);
    if (array == batch.arrays.end()) {
      throw Error(
          "a loss is counted over array `" + over + "`, which the corpus does not give",
          "use a corpus that gives it",
          exit_code::data
      );
    }
    count += array->second.is_meta() ? static_cast<double>(array->second.numel())
                                     : array->second.sum(at::kDouble).item<double>();
  }
  const auto all = at::tensor(count, at::kDouble);
  mesh_.group(MeshAxis::dp).all_reduce(all);
  if (!over.empty()) { // else the ranks of cp have their part of one microbatch
    mesh_.group(MeshAxis::cp).all_reduce(all);
  }
  return counts_[over] = all.item<double>();
}

void LossSums::add(const std::vector<Loss>& losses, LossCounts& counts) {
  for (const auto& loss : losses) {
    const bool vector = loss.sum.dim() > 0;
    MH_ASSERT(!vector || loss.weight == 0, "a loss is a scalar; a metric has weight 0");
    const double count = vector ? 1 : counts.of(loss.over);
    const auto type = loss.sum.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto value = loss.sum.detach().to(type) * (count > 0 ? 1 / count : 0.0);
    auto& sums = vector ? vectors_ : sums_;
    auto known = std::find_if(sums.begin(), sums.end(), [&](const auto& sum) {
      return sum.name == loss.name;
    });
    if (known == sums.end()) {
      sums.push_back({loss.name, loss.over, value, count, !loss.over.empty() && loss.weight != 0});
    } else {
      known->mean = known->mean + value;
    }
  }
}

void LossSums::sum_metrics(const Mesh& mesh, bool wanted) {
  if (!wanted) {
    vectors_.clear();
  }
  for (auto& sum : vectors_) {
    sum.mean = sum.mean.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
    sum_over_tokens(mesh, sum.mean);
  }
}

void LossSums::sum_losses(const Mesh& mesh) {
  for (auto& sum : sums_) {
    sum.own = sum.mean;
    sum.mean = sum.mean.clone();
    sum_over_tokens(mesh, sum.mean);
  }
}

StepNumbers LossSums::read(const Mesh& mesh, const at::Tensor& more) const {
  std::vector<at::Tensor> tensors;
  for (const auto* sums : {&sums_, &vectors_}) {
    for (const auto& sum : *sums) {
      tensors.push_back(sum.mean);
    }
  }
  if (more.defined()) {
    tensors.push_back(more);
  }
  const auto numbers = numbers_of(tensors);
  auto next = numbers.begin();
  StepNumbers read;
  for (const auto& sum : sums_) {
    read.losses.push_back({sum.name, (next++)->front(), sum.count, sum.main});
  }
  for (const auto& sum : vectors_) {
    read.metrics.push_back({sum.name, *next++});
  }
  read.more = more.defined() ? next->front() : 0;
  if (mesh.size(MeshAxis::pp) > 1) {
    read.losses = losses_of_all_stages(mesh, read.losses);
    read.metrics = metrics_of_all_stages(mesh, read.metrics);
  }
  std::stable_partition(read.losses.begin(), read.losses.end(), [](const auto& loss) {
    return loss.main;
  });
  return read;
}

std::vector<at::Tensor> LossSums::own() const {
  std::vector<at::Tensor> own;
  for (const auto& sum : sums_) {
    own.push_back(sum.own);
  }
  return own;
}

std::vector<LossSums::Mean> LossSums::means() const {
  std::vector<Mean> means;
  for (const auto& sum : sums_) {
    means.push_back({sum.name, sum.over, sum.mean});
  }
  return means;
}

void require_losses(const StepContext& context) {
  if (context.losses().empty()) {
    throw Error(
        "the model adds no loss for this batch",
        "a corpus for training gives `labels` and `loss_mask` in addition to `tokens`",
        exit_code::data
    );
  }
}

at::Tensor total_loss(const StepContext& context) {
  at::Tensor total;
  for (const auto& loss : context.losses()) {
    if (loss.weight == 0) {
      continue; // a metric
    }
    const auto part = loss.sum * *context.loss_factor(loss.over, loss.weight);
    total = total.defined() ? total + part : part;
  }
  return total;
}

} // namespace mh
