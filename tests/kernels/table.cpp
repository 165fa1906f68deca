#include "core/kernels/fp8_ops.hpp"
#include "core/kernels/gemm.hpp"
#include "core/kernels/ops.hpp"
#include "core/kernels/row_ops.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/attention_kernel.hpp"
#include "megahost/nn/feed_forward.hpp"
#include "megahost/nn/norm.hpp"
#include "megahost/nn/rotary.hpp"
#include "megahost/random.hpp"
#include "tests/kernels/operation.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ldexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace mh::test {

namespace {

using at::Tensor;

Case gemm_case(std::string name, int64_t m, int64_t k, int64_t n, bool left, bool right) {
  const auto turned = [](const Tensor& x, bool turn) { return turn ? x.t() : x; };
  const auto shape = [](int64_t rows, int64_t columns, bool turn) {
    return turn ? std::vector<int64_t>{columns, rows} : std::vector<int64_t>{rows, columns};
  };
  return {
      .name = std::move(name),
      .shapes = {shape(m, k, left), shape(k, n, right)},
      .ours =
          [=](const Tensors& in) {
            const Tensor a = turned(in[0].detach(), left);
            const Tensor b = turned(in[1].detach(), right);
            const auto type = a.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
            Tensor c = at::empty({m, n}, a.options().dtype(type));
            ops::gemm_(c, a, b, /*add=*/false);
            ops::gemm_(c, a, b, /*add=*/true);
            return c;
          },
      .plain =
          [=](const Tensors& in) {
            const Tensor a = turned(in[0].detach(), left);
            const Tensor b = turned(in[1].detach(), right);
            const auto type = a.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
            Tensor c = at::zeros({m, n}, a.options().dtype(type));
            c.add_(at::mm(a, b)).add_(at::mm(a, b));
            return c;
          }};
}

Operation gemm() {
  return {
      .name = "gemm_",
      .operators = {"megahost::gemm_"},
      .kernels = {at::kFloat, at::kBFloat16},
      .float_tolerance = 1e-6,
      .bf16_tolerance = 1e-6, // the sums are float32
      .cases =
          {gemm_case("rows", 5, 7, 3, false, false),
           gemm_case("rows by columns", 70, 300, 130, false, true),
           gemm_case("columns by rows", 70, 300, 130, true, false),
           gemm_case("columns", 129, 514, 257, true, true),
           gemm_case("deep columns by rows", 96, 8300, 70, true, false),
           gemm_case("a single sum", 1, 600, 1, false, false)},
      .large = gemm_case("gradient of a weight, twice", 3072, 1024, 768, true, false)};
}

Case product_case(std::string name, int64_t m, int64_t k, int64_t n) {
  return {
      .name = std::move(name),
      .shapes = {{m, k}, {n, k}},
      .ours = [](const Tensors& in) { return ops::product(in[0].detach(), in[1].detach().t()); },
      .plain = [](const Tensors& in) { return at::mm(in[0].detach(), in[1].detach().t()); }};
}

/// By `gemm_` or LibTorch: bf16 too at levels without instructions for it.
Operation product() {
  return {
      .name = "product",
      .operators = {"megahost::gemm_"},
      .kernels = {at::kFloat},
      .float_tolerance = 1e-6,
      .bf16_tolerance = 4e-3, // rounded once
      .cases =
          {product_case("odd sizes", 70, 301, 130),
           product_case("one row", 1, 64, 5),
           product_case("whole tiles", 64, 64, 96),
           product_case("many rows", 2100, 80, 33),
           product_case("few columns of much", 20, 9000, 40)},
      .large = product_case("output of a layer", 1024, 768, 3072)};
}

/// y = x rstd weight + bias for rows of `n`, by differentiable operations.
Tensor norm_by_hand(const Tensors& in, bool centred) {
  const Tensor x = centred ? in[0] - in[0].mean(-1, true) : in[0];
  const Tensor y = x * (x.square().mean(-1, true) + 1e-5).rsqrt() * in[1];
  return in.size() > 2 ? y + in[2] : y;
}

Case norm_case(std::string name, int64_t rows, int64_t n, NormKind kind) {
  Case c{
      .name = std::move(name),
      .shapes = {{rows, n}, {n}},
      .ours = [kind](const Tensors& in
              ) { return normalise(kind, in[0], in[1], in.size() > 2 ? in[2] : Tensor(), 1e-5); },
      .plain = [kind](const Tensors& in) { return norm_by_hand(in, info(kind).centred); }};
  if (kind == NormKind::layernorm) {
    c.shapes.push_back({n});
    c.rival = [](const Tensors& in) {
      return at::layer_norm(in[0], {in[0].size(-1)}, in[1], in[2], 1e-5);
    };
  }
  return c;
}

Operation norm(NormKind kind) {
  const char* name = kind == NormKind::rmsnorm     ? "rms norm"
                     : kind == NormKind::layernorm ? "layer norm"
                                                   : "layer norm without bias";
  return {
      .name = name,
      .operators = {"megahost::norm", "megahost::norm_backward"},
      .kernels = {at::kFloat, at::kBFloat16},
      .float_tolerance = 2e-6,
      .bf16_tolerance = 6e-3,
      .cases =
          {norm_case("one row", 1, 5, kind),
           norm_case("odd sizes", 37, 131, kind),
           norm_case("chunks of rows", 200, 64, kind)},
      .large = norm_case("1,024 tokens of 768", 1024, 768, kind)};
}

Tensor rotary_angles(int64_t seq, int64_t batch, int64_t half) {
  const Tensor positions = at::arange(seq * batch, at::kDouble).view({seq, batch, 1, 1});
  const Tensor angles = positions * at::arange(1, half + 1, at::kDouble).reciprocal();
  return at::stack({angles.cos(), angles.sin()}).to(at::kFloat);
}

Case rotary_case(std::string name, std::vector<int64_t> shape, int64_t half, int64_t table_batch) {
  const Tensor table = rotary_angles(shape[0], table_batch, half);
  return {
      .name = std::move(name),
      .shapes = {shape},
      .ours = [table](const Tensors& in) { return rotary(in[0], table); },
      .plain =
          [table, half](const Tensors& in) {
            const auto type = in[0].scalar_type();
            const Tensor cosine = table.select(0, 0).to(type);
            const Tensor sine = table.select(0, 1).to(type);
            const Tensor a = in[0].narrow(-1, 0, half);
            const Tensor b = in[0].narrow(-1, half, half);
            const Tensor rest = in[0].narrow(-1, 2 * half, in[0].size(-1) - 2 * half);
            return at::cat({a * cosine - b * sine, b * cosine + a * sine, rest}, -1);
          }};
}

Operation hidden_dropout() {
  constexpr int64_t kApart = (int64_t{5} << 32) + 3; // numbers of samples, both words of them
  const auto drop_case = [](std::string name, std::vector<int64_t> shape, int64_t first) {
    const Tensor samples = at::arange(shape[1]) * kApart;
    const Tensor tokens = at::arange(shape[0]) + 11;
    return Case{
        .name = std::move(name),
        .shapes = {shape},
        .ours = [=](const Tensors& in
                ) { return ops::dropout(in[0].detach(), 0.2, -9, samples, tokens, first); },
        .plain =
            [=](const Tensors& in) {
              Tensor y = in[0].detach().clone();
              y.mul_(1 / 0.8);
              for (int64_t s = 0; s < y.size(0); ++s) {
                for (int64_t b = 0; b < y.size(1); ++b) {
                  for (int64_t f = first; f < first + y.size(2); ++f) {
                    const auto low =
                        static_cast<uint64_t>(s + 11) << 32 | static_cast<uint64_t>(f / 4);
                    const auto words =
                        philox(static_cast<uint64_t>(-9), low, static_cast<uint64_t>(kApart * b));
                    if (words[static_cast<size_t>(f % 4)] < static_cast<uint32_t>(0.2 * 0x1p32)) {
                      y[s][b][f - first].zero_();
                    }
                  }
                }
              }
              return y;
            },
        .rival = [](const Tensors& in) { return at::dropout(in[0].detach(), 0.2, true); }};
  };
  return {
      .name = "dropout",
      .operators = {"megahost::dropout"},
      .kernels = {at::kFloat, at::kBFloat16},
      .float_tolerance = 1e-6,
      .bf16_tolerance = 4e-3,
      .cases = {drop_case("a few", {3, 2, 5}, 0), drop_case("later features", {2, 3, 131}, 66)},
      .large = drop_case("1,024 tokens of 768", {1024, 1, 768}, 0)};
}

Operation rotary_embedding() {
  return {
      .name = "rotary",
      .operators = {"megahost::rotary"},
      .kernels = {at::kFloat, at::kBFloat16},
      .float_tolerance = 1e-6,
      .bf16_tolerance = 4e-3,
      .cases =
          {rotary_case("whole heads", {19, 2, 3, 16}, 8, 1),
           rotary_case("part of each head", {7, 2, 3, 10}, 3, 1),
           rotary_case("positions per sample", {9, 4, 2, 64}, 32, 4)},
      .large = rotary_case("1,024 tokens, 12 heads of 64", {1024, 1, 12, 64}, 32, 1)};
}

Tensor activated_by_hand(ActivationKind kind, const Tensor& x) {
  const ActivationInfo& row = activations()[static_cast<size_t>(kind)];
  MH_ASSERT(!row.kernel.empty(), "it has no kernel");
  const auto act = [&row](const Tensor& in) {
    return row.kernel == "silu"        ? at::silu(in)
           : row.kernel == "gelu_tanh" ? at::gelu(in, "tanh")
                                       : at::gelu(in);
  };
  const auto halves = x.chunk(2, -1);
  return row.gated ? act(halves[0]) * halves[1] : act(x);
}

Case activation_case(std::string name, std::vector<int64_t> shape, ActivationKind kind) {
  return {
      .name = std::move(name),
      .shapes = {std::move(shape)},
      .ours = [kind](const Tensors& in) { return activate(kind, in[0]); },
      .plain = [kind](const Tensors& in) { return activated_by_hand(kind, in[0]); }};
}

Operation activation(std::string name, ActivationKind kind) {
  return {
      .name = std::move(name),
      .operators = {"megahost::activation", "megahost::activation_backward"},
      .kernels = {at::kFloat, at::kBFloat16},
      .float_tolerance = 2e-6,
      .bf16_tolerance = 4e-3,
      .cases =
          {activation_case("one", {1, 2}, kind),
           activation_case("odd width", {13, 2, 62}, kind),
           activation_case("many rows", {300, 256}, kind)},
      .large = activation_case("1,024 tokens of 4,096", {1024, 4096}, kind)};
}

/// Loss of each row and the gradient of the logits, one after another.
Case vocab_case(std::string name, int64_t rows, int64_t columns, int64_t entries, int64_t first) {
  const Tensor labels = (at::arange(rows) * 7).remainder(entries + 3) + first - 1; // some beyond
  const Tensor scale = (at::arange(rows, at::kDouble) + 1).rsqrt();
  return {
      .name = std::move(name),
      .shapes = {{rows, columns}},
      .ours =
          [=](const Tensors& in) {
            const Tensor z = in[0].detach().clone();
            const Tensor found = ops::vocab_statistics(z, labels, first, entries);
            const Tensor lse = found[1].log() + found[0];
            ops::vocab_gradient_(z, labels, lse, scale.to(lse.scalar_type()), first, entries);
            return at::cat({lse - found[2], z.flatten().to(lse.scalar_type())});
          },
      .plain =
          [=](const Tensors& in) {
            const Tensor z = in[0].detach().narrow(1, 0, entries).to(at::kFloat);
            const Tensor wide =
                in[0].scalar_type() == at::kDouble ? in[0].detach().narrow(1, 0, entries) : z;
            const Tensor local = (labels - first).unsqueeze(1);
            const Tensor mine = local.ge(0).logical_and(local.lt(entries)).to(wide.scalar_type());
            const Tensor column = local.clamp(0, entries - 1);
            const Tensor target = (wide.gather(1, column) * mine).squeeze(1);
            const Tensor shares = wide.softmax(1).scatter_add(1, column, -mine);
            const Tensor dz = shares * scale.to(wide.scalar_type()).unsqueeze(1);
            const Tensor padding = at::zeros({rows, columns - entries}, dz.options());
            return at::cat({wide.logsumexp(1) - target, at::cat({dz, padding}, 1).flatten()});
          }};
}

Operation vocab() {
  return {
      .name = "vocabulary",
      .operators = {"megahost::vocab_statistics", "megahost::vocab_gradient_"},
      .kernels = {at::kFloat, at::kBFloat16},
      .float_tolerance = 1e-6,
      .bf16_tolerance = 4e-3,
      .cases =
          {vocab_case("one entry", 3, 4, 1, 0),
           vocab_case("padded", 9, 128, 101, 0),
           vocab_case("a later part", 40, 257, 257, 50)},
      .large = vocab_case("256 tokens of 50,257", 256, 50304, 50257, 0)};
}

Case row_sums_case(std::string name, int64_t rows, int64_t columns) {
  const auto type_of = [](const Tensor& x) {
    return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  };
  return {
      .name = std::move(name),
      .shapes = {{rows, columns}},
      .ours =
          [=](const Tensors& in) {
            Tensor out = at::ones({columns}, in[0].options().dtype(type_of(in[0])));
            ops::add_row_sums_(out, in[0].detach());
            return out.detach();
          },
      .plain = [=](const Tensors& in) { return in[0].detach().sum(0, false, type_of(in[0])) + 1; }};
}

Operation row_sums() {
  return {
      .name = "row sums",
      .operators = {"megahost::add_row_sums_"},
      .kernels = {at::kFloat, at::kBFloat16},
      .float_tolerance = 1e-6,
      .bf16_tolerance = 1e-6, // the sums are float32
      .cases = {row_sums_case("one row", 1, 3), row_sums_case("odd sizes", 130, 77)},
      .large = row_sums_case("1,024 rows of 3,072", 1024, 3072)};
}

/// Rows added to those of a table, some twice, some nowhere.
Case embedding_case(std::string name, int64_t entries, int64_t rows, int64_t width) {
  const Tensor ids = (at::arange(rows) * 7).remainder(entries + 1) - 1;
  const auto start = [=](const Tensor& x) {
    const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return at::ones({entries, width}, x.options().dtype(type).requires_grad(false));
  };
  return {
      .name = std::move(name),
      .shapes = {{rows, width}},
      .ours =
          [=](const Tensors& in) {
            Tensor table = start(in[0]);
            ops::embedding_add_(table, ids, in[0].detach());
            return table;
          },
      .plain =
          [=](const Tensors& in) {
            const Tensor kept = in[0].detach() * ids.ge(0).unsqueeze(1);
            return start(in[0]).index_add(0, ids.clamp_min(0), kept.to(start(in[0]).dtype()));
          }};
}

Operation embedding() {
  return {
      .name = "embedding",
      .operators = {"megahost::embedding_add_"},
      .kernels = {at::kFloat, at::kBFloat16},
      .float_tolerance = 1e-6,
      .bf16_tolerance = 1e-6, // the sums are float32
      .cases = {embedding_case("one row", 1, 1, 1), embedding_case("repeated", 5, 40, 131)},
      .large = embedding_case("1,024 tokens of 768", 50257, 1024, 768)};
}

/// x * scale, to the nearest value with 3 (E4M3) or 2 (E5M2) bits behind the leading one.
Tensor fp8_by_hand(const Tensor& x, double scale, bool e5m2) {
  const Tensor wide = x.detach().to(at::kDouble) * scale;
  const int least = e5m2 ? -14 : -6;
  const int bits = e5m2 ? 2 : 3;
  const Tensor exponent = std::get<1>(at::frexp(wide)).sub(1).clamp_min(least).sub(bits);
  const Tensor unit = at::ldexp(at::ones_like(wide), exponent);
  const double most = ops::fp8_max(e5m2);
  return ((wide / unit).round() * unit).clamp(-most, most); // rounds ties to even
}

Case fp8_case(std::string name, int64_t m, int64_t k, int64_t n, bool e5m2) {
  // powers of two, so that scaling rounds nothing
  const double a = e5m2 ? 4096 : 64;
  const double b = 32;
  const auto scalar = [](double value) { return at::full({}, value, at::kFloat); };
  return {
      .name = std::move(name),
      .shapes = {{m, k}, {k, n}},
      .ours =
          [=](const Tensors& in) {
            const Tensor left = ops::fp8_round(in[0].detach(), scalar(a), e5m2);
            const Tensor right = ops::fp8_round(in[1].detach(), scalar(b), false);
            return ops::fp8_product(left, right, scalar(1 / (a * b)));
          },
      .plain =
          [=](const Tensors& in) {
            const Tensor product =
                at::mm(fp8_by_hand(in[0], a, e5m2), fp8_by_hand(in[1], b, false));
            return product / (a * b);
          }};
}

Case largest_case(std::string name, std::vector<int64_t> shape) {
  return {
      .name = std::move(name),
      .shapes = {std::move(shape)},
      .ours = [](const Tensors& in) { return ops::fp8_largest(in[0].detach()).reshape({1}); },
      .plain = [](const Tensors& in
               ) { return in[0].detach().abs().max().to(at::kFloat).reshape({1}); }};
}

Operation fp8() {
  return {
      .name = "fp8 product",
      .operators = {"megahost::fp8_largest", "megahost::fp8_round", "megahost::fp8_product"},
      .kernels = {},
      .float_tolerance = 1e-6,
      .bf16_tolerance = 1e-6, // the same operands, sums in float32
      .cases =
          {fp8_case("E4M3 by E4M3", 33, 64, 20, false),
           fp8_case("E5M2 by E4M3, odd sizes", 7, 35, 5, true),
           largest_case("largest", {5, 3, 7})},
      .large = fp8_case("1,024 tokens, 768 to 3,072", 1024, 768, 3072, false),
      .double_tolerance = 1e-6};
}

} // namespace

const std::vector<Operation>& operations() {
  static const std::vector<Operation> kOperations = {
      attention_operation(),
      dropped_attention_operation(),
      gemm(),
      product(),
      norm(NormKind::layernorm),
      norm(NormKind::rmsnorm),
      norm(norm_kind("layernorm_no_bias")),
      hidden_dropout(),
      rotary_embedding(),
      activation("swiglu", ActivationKind::swiglu),
      activation("geglu", activation_kind("geglu")),
      activation("geglu_tanh", activation_kind("geglu_tanh")),
      activation("gelu", ActivationKind::gelu),
      activation("gelu_tanh", ActivationKind::gelu_tanh),
      vocab(),
      row_sums(),
      embedding(),
      update_operation(),
      slots_operation(),
      grouped_operation(),
      fp8()};
  return kOperations;
}

} // namespace mh::test
