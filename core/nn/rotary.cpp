#include "megahost/nn/rotary.hpp"

#include "core/kernels/row_ops.hpp"
#include "core/memory/staging.hpp"
#include "megahost/error.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Rotary : torch::autograd::Function<Rotary> {
  struct Saved {
    int64_t rotated;
  };

  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& packed,
      const std::vector<int64_t>& heads,
      int64_t rotated,
      const at::Tensor& table
  ) {
    ctx->save_for_backward({table});
    save(ctx, Saved{rotated});
    const int64_t turned_heads =
        std::accumulate(heads.begin(), heads.begin() + rotated, int64_t{0});
    const at::Tensor turned =
        ops::rotary(packed.narrow(2, 0, turned_heads), table, 1, /*inverse=*/false);
    if (heads.size() == 1) {
      return {turned};
    }
    variable_list parts;
    int64_t first = 0;
    for (const int64_t count : heads) {
      const at::Tensor& from = first < turned_heads ? turned : packed;
      parts.push_back(from.narrow(2, first, count));
      first += count;
    }
    return parts;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor table = ctx->get_saved_variables()[0];
    const int64_t rotated = get_saved<Saved>(ctx).rotated;
    return {ops::rotary(gradients, table, rotated, /*inverse=*/true), {}, {}, {}};
  }
};

/// Low frequencies are stretched, high ones kept, those between blended.
double llama3_scaled(double frequency, const RotarySpec& spec) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double turns = spec.original_length / wavelength;
  if (turns > spec.high_freq) {
    return frequency;
  }
  if (turns < spec.low_freq) {
    return frequency / spec.factor;
  }
  const double kept = (turns - spec.low_freq) / (spec.high_freq - spec.low_freq);
  return (1 - kept) * frequency / spec.factor + kept * frequency;
}

/// Pairs that turn often over the original context are kept, those that turn less than once are
/// stretched, those between blended. The reference rounds the bounds to whole pairs.
double yarn_scaled(double frequency, int64_t pair, const RotarySpec& spec) {
  const auto pair_of = [&](double turns) {
    return static_cast<double>(spec.dim) *
           std::log(spec.original_length / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(spec.base));
  };
  double first = pair_of(spec.beta_fast), last = pair_of(spec.beta_slow);
  if (spec.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(spec.dim - 1));
  const double width = first == last ? 0.001 : last - first; // as the reference has it
  const double stretched = std::clamp((static_cast<double>(pair) - first) / width, 0.0, 1.0);
  return frequency * (1 - stretched) + frequency / spec.factor * stretched;
}

/// The factor of cosines and sines.
double magnitude(const RotarySpec& spec) {
  if (spec.scaling == "yarn") {
    return spec.attention.value_or(0.1 * std::log(spec.factor) + 1);
  }
  return spec.scaling == "longrope"
             ? spec.attention.value_or(
                   std::sqrt(1 + std::log(spec.factor) / std::log(spec.original_length))
               )
             : 1;
}

} // namespace

std::vector<double> rotary_frequencies(const RotarySpec& spec) {
  if (spec.dim <= 0 || spec.dim % 2 != 0) {
    throw Error(
        "rotary embedding rotates pairs, but " + std::to_string(spec.dim) +
        " elements of a head were asked for"
    );
  }
  if (spec.scaling == "longrope" && static_cast<int64_t>(spec.wavelengths.size()) != spec.dim / 2) {
    throw Error(
        "longrope has a factor of each of " + std::to_string(spec.dim / 2) + " pairs, but " +
        std::to_string(spec.wavelengths.size()) + " were given"
    );
  }
  std::vector<double> frequencies;
  for (int64_t i = 0; i < spec.dim; i += 2) {
    double f = std::pow(spec.base, -static_cast<double>(i) / static_cast<double>(spec.dim));
    if (spec.scaling == "linear") {
      f /= spec.factor;
    } else if (spec.scaling == "llama3") {
      f = llama3_scaled(f, spec);
    } else if (spec.scaling == "yarn") {
      f = yarn_scaled(f, i / 2, spec);
    } else if (spec.scaling == "longrope") {
      f /= spec.wavelengths[static_cast<size_t>(i / 2)];
    } else if (spec.scaling != "none") {
      throw Error(
          "there is no rotary scaling `" + spec.scaling + "`",
          "scalings: none, linear, llama3, yarn, longrope"
      );
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

at::Tensor rotary_table(const RotarySpec& spec, StepContext& context) {
  std::string key = "rotary " + spec.scaling;
  for (const double number :
       {static_cast<double>(spec.dim),
        spec.base,
        spec.factor,
        spec.low_freq,
        spec.high_freq,
        spec.beta_slow,
        spec.beta_fast,
        static_cast<double>(spec.truncate),
        spec.original_length,
        magnitude(spec)}) {
    key += " " + std::to_string(number);
  }
  for (const double wavelength : spec.wavelengths) {
    key += " " + std::to_string(wavelength);
  }
  return context.cached(key, [&] {
    const at::Tensor positions = context.positions().to(at::kDouble);
    const at::Tensor frequencies =
        staged(at::tensor(rotary_frequencies(spec), at::kDouble), positions.device());
    const at::Tensor angles = positions.unsqueeze(-1).unsqueeze(-1) * frequencies;
    return at::stack({angles.cos(), angles.sin()}).mul_(magnitude(spec)).to(at::kFloat);
  });
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& table) {
  MH_ASSERT(2 * table.size(-1) <= x.size(-1), "more rotated elements than a head has");
  return Rotary::apply(x, std::vector<int64_t>{x.size(2)}, 1, table)[0];
}

std::vector<at::Tensor> rotary(
    const at::Tensor& packed,
    const std::vector<int64_t>& heads,
    int64_t rotated,
    const at::Tensor& table
) {
  MH_ASSERT(2 * table.size(-1) <= packed.size(-1), "more rotated elements than a head has");
  return Rotary::apply(packed, heads, rotated, table);
}

at::Tensor adjacent_to_halves(const at::Tensor& x, int64_t rotated) {
  const int64_t rest = x.size(-1) - rotated;
  const at::Tensor pairs = x.narrow(-1, 0, rotated).unflatten(-1, {rotated / 2, 2});
  const at::Tensor halves = pairs.transpose(-1, -2).flatten(-2);
  return rest == 0 ? halves : at::cat({halves, x.narrow(-1, rotated, rest)}, -1);
}

} // namespace mh
