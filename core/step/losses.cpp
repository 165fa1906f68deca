#include "core/step/losses.hpp"

#include "core/mesh/agree.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
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
      sums.push_back({loss.name, value, count, !loss.over.empty() && loss.weight != 0});
    } else {
      known->mean = known->mean + value;
    }
  }
}

std::vector<LossValue> LossSums::values(const Mesh& mesh) const {
  std::vector<LossValue> values;
  for (const auto& sum : sums_) {
    const auto all = sum.mean.clone();
    sum_over_tokens(mesh, all);
    values.push_back({sum.name, number_of(all), sum.count, sum.main});
  }
  if (mesh.size(MeshAxis::pp) > 1) {
    values = losses_of_all_stages(mesh, values);
  }
  std::stable_partition(values.begin(), values.end(), [](const auto& loss) { return loss.main; });
  return values;
}

std::vector<MetricValue> LossSums::metrics(const Mesh& mesh) const {
  std::vector<MetricValue> metrics;
  for (const auto& sum : vectors_) {
    auto all = sum.mean.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
    sum_over_tokens(mesh, all);
    if (all.is_meta()) {
      metrics.push_back({sum.name, std::vector<double>(static_cast<size_t>(all.numel()))});
      continue;
    }
    all = all.cpu();
    const auto* data = all.const_data_ptr<double>();
    metrics.push_back({sum.name, {data, data + all.numel()}});
  }
  if (mesh.size(MeshAxis::pp) == 1) {
    return metrics;
  }
  nlohmann::json list = nlohmann::json::array();
  for (const auto& metric : metrics) {
    nlohmann::json values = nlohmann::json::array();
    for (const double value : metric.values) {
      values.push_back(bits(value));
    }
    list.push_back({metric.name, values});
  }
  metrics.clear();
  for (const auto& item : of_all_stages(mesh, list)) {
    auto& metric = metrics.emplace_back(MetricValue{item[0], {}});
    for (const auto& value : item[1]) {
      metric.values.push_back(from_bits(value));
    }
  }
  return metrics;
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
