#include "core/foreign/master_beginnings.hpp"

#include "core/base/printable.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/norm.h>

#include <algorithm>

namespace mh {

namespace {

constexpr int64_t kMasterElements = 64;
constexpr double kMostRounding = 0.25; ///< share of the norm; FP8 rounds by a sixteenth
constexpr double kMostVanished = 1e-5; ///< norm of numbers that are 0 in FP16

} // namespace

void MasterBeginnings::add(
    const CheckpointReader& saved, const std::string& name, std::vector<Slice>& ret_slices
) {
  const CheckpointTensor* weight = saved.find(name);
  const CheckpointTensor* master = saved.find("optimizer.master." + name);
  if (weight == nullptr || master == nullptr || weight->shape != master->shape ||
      weight->shape.empty()) {
    return;
  }
  std::vector<int64_t> sizes(weight->shape.size(), 1);
  sizes.back() = std::min(weight->shape.back(), kMasterElements);
  const auto beginning = [&](const CheckpointTensor& tensor) {
    ret_slices.push_back(
        {tensor.name,
         tensor.shape,
         std::vector<int64_t>(sizes.size()),
         at::empty(sizes, at::kFloat)}
    );
    return ret_slices.back().local;
  };
  all_.push_back({name, beginning(*weight), beginning(*master)});
}

void MasterBeginnings::require_alike(const std::string& from) const {
  for (const Beginning& one : all_) {
    const double off = (one.weight - one.master).norm().item<double>();
    if (!(off <= kMostVanished + kMostRounding * one.weight.norm().item<double>())) {
      throw Error(
          from + ": the master of " + printable(one.name) +
              " has other values than the weight, by more than rounding",
          "megatron-core 0.16.1 saves such ones by --dist-ckpt-optim-fully-reshardable where "
          "buckets are padded: save the checkpoint without that option, or begin a run with "
          "--weights, which reads the weights",
          exit_code::data
      );
    }
  }
}

} // namespace mh
