#include "core/kernels/update_cuda.hpp"

#include "core/cuda/library.hpp"
#include "core/memory/staging.hpp"

#include <ATen/ops/empty.h>

#include <cmath>
#include <cstring>

namespace mh::ops {

namespace {

using at::Tensor;

bool is(const Tensor& x, at::ScalarType type) {
  return !x.defined() || (x.scalar_type() == type && x.is_contiguous());
}

bool is_either(const Tensor& x) {
  return is(x, at::kFloat) || is(x, at::kBFloat16);
}

bool on_device(const Number& number, at::Device device) {
  return !number.is_tensor() || number.base().device() == device;
}

/// Whether the kernel takes the item's types and layout.
bool fits(const UpdateItemView& item) {
  const auto device = item.weight.device();
  const bool states_alike =
      !item.second.defined() || item.second.scalar_type() == item.first.scalar_type();
  return is(item.gradient, at::kFloat) && is_either(item.weight) && is_either(item.first) &&
         is_either(item.second) && states_alike && is(item.parameter, at::kBFloat16) &&
         on_device(item.rate, device) && on_device(item.decay, device);
}

cuda::GpuNumber number_of(const Number& number) {
  if (number.is_tensor()) {
    return {number.factor(), number.base().const_data_ptr<double>()};
  }
  return {number.number(), nullptr};
}

cuda::GpuType type_of(const Tensor& x) {
  return x.defined() && x.scalar_type() == at::kBFloat16 ? cuda::GpuType::bf16
                                                         : cuda::GpuType::fp32;
}

void* memory_of(const Tensor& x) {
  return x.defined() ? x.mutable_data_ptr() : nullptr;
}

/// The dimensions of the item's slice; those that are whole become one with the one before.
std::vector<cuda::Place> places_of(const UpdateItemView& item) {
  std::vector<cuda::Place> places;
  for (size_t d = 0; d < item.shape.size(); ++d) {
    const cuda::Place own{item.weight.size(static_cast<int64_t>(d)), item.shape[d], item.offset[d]};
    if (!places.empty() && own.size == own.shape) {
      auto& outer = places.back();
      outer = {outer.size * own.size, outer.shape * own.size, outer.offset * own.size};
    } else {
      places.push_back(own);
    }
  }
  return places;
}

/// A copy of host memory on the device, for which the host does not wait.
template <class T>
Tensor staged_copy(const std::vector<T>& values, at::Device device) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  const Tensor host = at::empty({bytes}, at::kByte);
  std::memcpy(host.mutable_data_ptr(), values.data(), static_cast<size_t>(bytes));
  return staged(host, device);
}

/// The items of a launch and what their call says of them.
class Launch {
public:
  void add(const UpdateItemView& item) {
    const auto places = places_of(item);
    items_.push_back(
        {.weight = memory_of(item.weight),
         .first = memory_of(item.first),
         .second = memory_of(item.second),
         .gradient = static_cast<float*>(memory_of(item.gradient)),
         .parameter = memory_of(item.parameter),
         .weight_type = type_of(item.weight),
         .state_type = type_of(item.first),
         .count = item.weight.numel(),
         .first_chunk = chunks_,
         .place = static_cast<int32_t>(places_.size()),
         .places = static_cast<int32_t>(places.size()),
         .key = item.key,
         .rate = number_of(item.rate),
         .decay = number_of(item.decay)}
    );
    places_.insert(places_.end(), places.begin(), places.end());
    chunks_ += (item.weight.numel() + cuda::kUpdateChunk - 1) / cuda::kUpdateChunk;
  }

  void start(const cuda::LaunchTable& kernels, const UpdateNumbers& n, at::Device device) const {
    if (chunks_ == 0) {
      return;
    }
    const Tensor items = staged_copy(items_, device), places = staged_copy(places_, device);
    const bool known = !n.step.is_tensor();
    const auto rest = [&](double beta) { return known ? 1 - std::pow(beta, n.step.number()) : 0; };
    const cuda::UpdateLaunch call{
        .kind = n.kind,
        .decoupled = n.decoupled,
        .nesterov = n.nesterov,
        .stochastic = n.stochastic,
        .beta1 = n.beta1,
        .beta2 = n.beta2,
        .eps = n.eps,
        .scale = number_of(n.scale),
        .step = number_of(n.step),
        .rest1 = rest(n.beta1),
        .rest2 = rest(n.beta2),
        .items = static_cast<const cuda::GpuItem*>(items.const_data_ptr()),
        .places = static_cast<const cuda::Place*>(places.const_data_ptr()),
        .item_count = static_cast<int32_t>(items_.size()),
        .chunks = chunks_};
    start_kernel(kernels.update, call, device);
  }

private:
  std::vector<cuda::GpuItem> items_;
  std::vector<cuda::Place> places_;
  int64_t chunks_ = 0;
};

} // namespace

void update_on_cuda(const UpdateNumbers& numbers, const std::vector<UpdateItemView>& items) {
  const cuda::LaunchTable* kernels = cuda_kernels();
  const auto device = items.front().weight.device();
  const bool taken =
      kernels != nullptr && on_device(numbers.scale, device) && on_device(numbers.step, device);
  Launch launch;
  for (const auto& item : items) {
    if (!taken || !fits(item)) {
      update_plainly(numbers, item);
    } else if (item.weight.numel() > 0) {
      launch.add(item);
    }
  }
  if (taken) {
    launch.start(*kernels, numbers, device);
  }
}

} // namespace mh::ops
