#include "core/plan/cost.hpp"

#include "megahost/nn/attention_kernel.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace mh::ops {

namespace {

using Arguments = c10::ArrayRef<const c10::IValue>;

double elements(const c10::IValue& value) {
  return value.isTensor() ? static_cast<double>(value.toTensor().numel()) : 0;
}

double bytes(Arguments arguments) {
  double sum = 0;
  for (const auto& value : arguments) {
    if (value.isTensor() && value.toTensor().defined()) {
      sum += static_cast<double>(value.toTensor().nbytes());
    }
  }
  return sum;
}

/// Arithmetic of `flops` for each element of the first argument, which is read and written.
template <int Flops>
Cost element_wise(Arguments arguments) {
  return {
      Flops * elements(arguments[0]),
      bytes(arguments) + static_cast<double>(arguments[0].toTensor().nbytes())};
}

/// q, k, v at `first` and after; the mask's numbers where they stand after `scale`.
Cost attention(Arguments arguments, size_t first, size_t scale, double products) {
  const auto& q = arguments[first].toTensor();
  const auto& k = arguments[first + 1].toTensor();
  const auto& given = arguments[scale + 13];
  const double pairs =
      given.isNone()
          ? visible_pairs(
                q.size(0), k.size(0), arguments[scale + 1].toBool(), arguments[scale + 2].toInt()
            )
          : given.toDouble();
  const auto heads = static_cast<double>(q.size(1) * q.size(2));
  return {
      products * 2 * pairs * heads * static_cast<double>(q.size(3)),
      bytes(arguments) + static_cast<double>(q.nbytes())};
}

/// Bytes of one of x's rows for each slot.
double moved_rows(const at::Tensor& x, const at::Tensor& slots) {
  return static_cast<double>(slots.numel() * x.size(1) * x.element_size());
}

/// Every tensor of the lists is read and written once.
Cost update(Arguments arguments) {
  Cost cost;
  for (const auto& value : arguments) {
    if (!value.isTensorList()) {
      continue;
    }
    for (const at::Tensor& tensor : value.toTensorVector()) {
      cost.bytes += 2 * static_cast<double>(tensor.nbytes());
      cost.flops += 4 * static_cast<double>(tensor.numel());
    }
  }
  return cost;
}

constexpr std::array<std::pair<std::string_view, CostFunction>, 23> kCosts = {{
    {"megahost::attention", [](Arguments a) { return attention(a, 0, 3, 2); }},
    {"megahost::attention_backward", [](Arguments a) { return attention(a, 1, 6, 5); }},
    {"megahost::gemm_",
     [](Arguments a) {
       const auto depth = static_cast<double>(a[1].toTensor().size(1));
       return Cost{2 * depth * elements(a[0]), bytes(a)};
     }},
    {"megahost::norm",
     [](Arguments a) {
       const double sum = a[1].isNone() ? 0 : static_cast<double>(a[1].toTensor().nbytes());
       const Cost cost = element_wise<8>(a);
       return Cost{cost.flops, cost.bytes + sum};
     }},
    {"megahost::norm_backward", element_wise<16>},
    {"megahost::rotary",
     [](Arguments a) {
       Cost cost;
       for (const at::Tensor& part : a[0].toTensorVector()) {
         cost.flops += 3 * static_cast<double>(part.numel());
         cost.bytes += 2 * static_cast<double>(part.nbytes());
       }
       cost.bytes += static_cast<double>(a[1].toTensor().nbytes());
       return cost;
     }},
    {"megahost::activation", element_wise<8>},
    {"megahost::activation_backward", element_wise<16>},
    {"megahost::fp8_largest", element_wise<1>},
    {"megahost::fp8_round", element_wise<4>},
    {"megahost::fp8_product",
     [](Arguments a) {
       const auto columns = static_cast<double>(a[1].toTensor().size(1));
       return Cost{2 * columns * elements(a[0]), bytes(a)};
     }},
    {"megahost::vocab_statistics", element_wise<12>},
    {"megahost::vocab_gradient_", element_wise<12>},
    {"megahost::add_row_sums_",
     [](Arguments a) {
       return Cost{elements(a[1]), bytes(a)};
     }},
    {"megahost::embedding_add_",
     [](Arguments a) {
       const auto rows = static_cast<double>(a[2].toTensor().nbytes());
       return Cost{elements(a[2]), 3 * rows};
     }},
    {"megahost::dropout", element_wise<8>},
    {"megahost::update_", update},
    {"megahost::expert_slots",
     [](Arguments a) {
       return Cost{elements(a[0]), 3 * bytes(a)};
     }},
    {"megahost::expert_scatter",
     [](Arguments a) {
       const auto row = static_cast<double>(a[0].toTensor().size(1));
       return Cost{row * elements(a[1]), bytes(a) + moved_rows(a[0].toTensor(), a[1].toTensor())};
     }},
    {"megahost::expert_gather",
     [](Arguments a) {
       const auto row = static_cast<double>(a[0].toTensor().size(1));
       const auto tokens = static_cast<double>(a[1].toTensor().size(0));
       const auto element = static_cast<double>(a[0].toTensor().element_size());
       return Cost{2 * row * elements(a[1]), bytes(a) + tokens * row * element};
     }},
    {"megahost::expert_gather_backward",
     [](Arguments a) {
       const auto row = static_cast<double>(a[0].toTensor().size(1));
       return Cost{
           3 * row * elements(a[2]), bytes(a) + moved_rows(a[0].toTensor(), a[2].toTensor())};
     }},
    {"megahost::grouped_product",
     [](Arguments a) {
       const auto& weight = a[1].toTensor();
       const auto columns = static_cast<double>(weight.size(a[3].toBool() ? 1 : 2));
       return Cost{2 * columns * elements(a[0]), bytes(a)};
     }},
    {"megahost::grouped_gradient_",
     [](Arguments a) {
       const auto columns = static_cast<double>(a[1].toTensor().size(1));
       return Cost{2 * columns * elements(a[2]), bytes(a)};
     }},
}};

} // namespace

CostFunction find_cost(std::string_view name) {
  const auto* found =
      std::find_if(kCosts.begin(), kCosts.end(), [&](const auto& c) { return c.first == name; });
  return found == kCosts.end() ? nullptr : found->second;
}

} // namespace mh::ops
