#include "core/train/losses.hpp"

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

/// Each pipeline stage has the losses that its own blocks add; all get to know all.
std::vector<LossValue> of_all_stages(const Mesh& mesh, const std::vector<LossValue>& own) {
  using nlohmann::json;
  const auto texts = together(ranks_of(mesh.group(MeshAxis::pp)), [&] {
    json list = json::array();
    for (const auto& loss : own) { // bits: JSON has no NaN
      list.push_back({loss.name, std::bit_cast<uint64_t>(loss.value), loss.count});
    }
    return list.dump();
  });
  std::vector<LossValue> all;
  for (const auto& text : texts) {
    for (const auto& item : json::parse(text)) {
      const std::string name = item[0];
      const auto value = std::bit_cast<double>(item[1].get<uint64_t>());
      const auto known = std::find_if(all.begin(), all.end(), [&](const LossValue& loss) {
        return loss.name == name;
      });
      if (known == all.end()) {
        all.push_back({name, value, item[2]});
      } else {
        known->value += value;
      }
    }
  }
  return all;
}

} // namespace

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
    count += array->second.sum(at::kDouble).item<double>();
  }
  const auto all = at::tensor(count, at::kDouble);
  sum_over_tokens(mesh_, all);
  return counts_[over] = all.item<double>();
}

void LossSums::add(const std::vector<Loss>& losses, LossCounts& counts) {
  for (const auto& loss : losses) {
    const double count = counts.of(loss.over);
    const auto type = loss.sum.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto value = loss.sum.detach().to(type) * (count > 0 ? 1 / count : 0.0);
    auto known = std::find_if(sums_.begin(), sums_.end(), [&](const auto& sum) {
      return sum.name == loss.name;
    });
    if (known == sums_.end()) {
      sums_.push_back({loss.name, value, count});
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
    values.push_back({sum.name, all.item<double>(), sum.count});
  }
  return mesh.size(MeshAxis::pp) > 1 ? of_all_stages(mesh, values) : values;
}

void require_losses(const StepContext& context) {
  if (context.losses().empty()) {
    throw Error(
        "the model adds no loss for this batch",
        "a corpus for training gives `labels` and `loss_mask` beside `tokens`",
        exit_code::data
    );
  }
}

at::Tensor total_loss(const StepContext& context) {
  at::Tensor total;
  for (const auto& loss : context.losses()) {
    const auto part = loss.sum * *context.loss_factor(loss.over, loss.weight);
    total = total.defined() ? total + part : part;
  }
  return total;
}

} // namespace mh
