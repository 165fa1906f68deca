// Each operator of ATen as XLA's CPU plugin computes its lowering, next to LibTorch's CPU, in float64.

#include "core/program/recorder.hpp"
#include "core/program/stablehlo/lowering.hpp"
#include "core/program/stablehlo/module.hpp"
#include "xla_cpu.hpp"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <string>

namespace {

using at::Tensor;
using mh::program::GraphRecorder;
using Tensors = std::vector<Tensor>;
using Form = std::function<Tensors(const Tensors&)>;

std::set<std::string>& seen() {
  static std::set<std::string> ops;
  return ops;
}

/// Compares the results of `form` for the inputs by a module and by LibTorch.
void compare(const std::string& name, const Tensors& inputs, const Form& form) {
  if (mh::xla_cpu() == nullptr) {
    return;
  }
  CAPTURE(name);
  const Tensors wanted = form(inputs);
  std::vector<int64_t> outputs;
  std::string module;
  {
    GraphRecorder recorder;
    Tensors recorded;
    for (const Tensor& input : inputs) {
      recorded.push_back(recorder.input(input.sizes(), input.scalar_type()));
    }
    for (const Tensor& output : form(recorded)) {
      outputs.push_back(recorder.value_of(output));
    }
    const auto graph = with_needed_nodes(std::move(recorder).graph(), outputs);
    for (const auto& node : graph.nodes) {
      seen().insert(node.op);
    }
    module = mh::program::stablehlo::module_text(graph, outputs, {});
  }
  const Tensors got = mh::run_on_xla(module, inputs, wanted);
  for (size_t i = 0; i < wanted.size(); ++i) {
    CAPTURE(module);
    CHECK(got[i].sizes() == wanted[i].sizes());
    CHECK(at::allclose(got[i], wanted[i], 1e-12, 1e-12, /*equal_nan=*/true));
  }
}

Tensor numbers(at::IntArrayRef sizes, double first = -1.7, double step = 0.37) {
  int64_t count = 1;
  for (const int64_t size : sizes) {
    count *= size;
  }
  return (at::arange(count, at::kDouble) * step + first).sin().mul_(1.5).reshape(sizes);
}

Tensor ids(at::IntArrayRef sizes, int64_t below) {
  int64_t count = 1;
  for (const int64_t size : sizes) {
    count *= size;
  }
  return (at::arange(count, at::kLong) * 7).remainder(below).reshape(sizes);
}

TEST_CASE("elementwise") {
  const Tensor x = numbers({3, 1, 4}), y = numbers({2, 1}, 0.4), positive = x.abs() + 0.1;
  const auto pair = [&](const char* name, auto op) {
    compare(name, {x, y}, [op](const Tensors& in) { return Tensors{op(in[0], in[1])}; });
  };
  pair("sum", [](const Tensor& a, const Tensor& b) {
    return at::add(a, b, 3) - 2 + at::rsub(a, 1);
  });
  pair("difference", [](const Tensor& a, const Tensor& b) {
    return 1 - at::sub(a, b, 0.5) + a * 2;
  });
  pair("product", [](const Tensor& a, const Tensor& b) { return a * b / (b * b + 1) / 3; });
  pair("extremes", [](const Tensor& a, const Tensor& b) {
    return at::maximum(a, b) + at::minimum(a, b).clamp(-0.5, 0.7) + a.clamp_min(0.1) +
           b.clamp_max(0);
  });
  pair("powers", [](const Tensor& a, const Tensor& b) {
    return a.pow(2) + a.pow(3) + at::pow(0.9, b) + at::pow(a.abs() + 0.1, b) +
           (a.abs() + 1).pow(0.5);
  });
  pair("comparisons", [](const Tensor& a, const Tensor& b) {
    const Tensor either =
        a.lt(b).logical_or(a.eq(0)).logical_and(b.ne(1).logical_not().logical_not());
    const Tensor wide = a + b * 0;
    const Tensor all = wide.eq(wide)
                           .logical_and(a.ge(b))
                           .logical_or(a.le(b).logical_and(a.gt(b)))
                           .logical_or(a.ne(b));
    return at::where(all, a, b * 2) + wide.masked_fill(all, at::scalar_tensor(3, a.options())) +
           at::where(either, a, b) +
           at::where(a.ge(0.2).bitwise_or(b.le(-0.3)), b, a).masked_fill(a.gt(1), 9);
  });
  pair("whole numbers", [](const Tensor& a, const Tensor& b) {
    const Tensor i = (a * 10).to(at::kLong), j = (b * 3).to(at::kLong).abs() + 2;
    return i.floor_divide(j) * 100 + i.remainder(j) + i.remainder(-3) +
           i.bitwise_and(0xff).bitwise_xor(j) + i.bitwise_right_shift(2).bitwise_or(j) +
           i.bitwise_not();
  });
  const auto single = [&](const char* name, const Tensor& in, auto op) {
    compare(name, {in}, [op](const Tensors& all) { return Tensors{op(all[0])}; });
  };
  single("curves", x, [](const Tensor& a) {
    return a.exp() + a.tanh() + a.sigmoid() + a.sin() * a.cos() + at::erf(a) + a.neg().abs() +
           a.sign();
  });
  single("roots", positive, [](const Tensor& a) {
    return a.log() + a.sqrt() + a.rsqrt() + a.reciprocal();
  });
  single("steps", x, [](const Tensor& a) {
    return (a * 3).floor() + (a * 3).ceil() + (a * 3).remainder(2);
  });
  single("types", x, [](const Tensor& a) {
    return a.to(at::kFloat).to(at::kBFloat16).to(at::kDouble) +
           (a * 9).to(at::kInt).to(at::kDouble);
  });
  single("bits", x.to(at::kFloat), [](const Tensor& a) { return a.view(at::kInt); });
  single("constants", x, [](const Tensor& a) {
    return a + at::zeros_like(a) + at::ones({4}, a.options()) + at::full({1}, 0.3, a.options()) +
           at::scalar_tensor(2, a.options()) + a.new_zeros({4});
  });
  single("infinities", x, [](const Tensor& a) {
    return a.masked_fill(a.gt(0), -INFINITY).to(at::kFloat).to(at::kDouble);
  });
  single("activations", x, [](const Tensor& a) {
    return at::relu(a) + at::gelu(a) + at::gelu(a, "tanh") + at::silu(a);
  });
}

TEST_CASE("gradients of activations") {
  compare("gradients", {numbers({4, 5})}, [](const Tensors& in) {
    Tensors all;
    for (const auto& form : std::initializer_list<std::function<Tensor(const Tensor&)>>{
             [](const Tensor& x) { return at::relu(x); },
             [](const Tensor& x) { return at::gelu(x); },
             [](const Tensor& x) { return at::gelu(x, "tanh"); },
             [](const Tensor& x) { return at::silu(x); },
             [](const Tensor& x) { return at::softmax(x, 1) * x.tanh().sigmoid(); },
             [](const Tensor& x) { return at::log_softmax(x, 0) * at::lerp(x, x * x, 0.3); },
             [](const Tensor& x) { return at::logsumexp(x, 1, true) * x; },
             [](const Tensor& x) { return x[1] * x.slice(1, 1, 5, 2).select(0, 2).sum(); },
             [](const Tensor& x) {
               return at::addcmul(x, x, x, 2) + at::addcdiv(x, x, x * x + 1, 3);
             }}) {
      Tensor x = in[0].detach().requires_grad_();
      form(x).pow(3).sum().backward();
      all.push_back(x.grad());
    }
    return all;
  });
  compare(
      "layer norm",
      {numbers({3, 6}), numbers({6}, 0.2), numbers({6}, 1)},
      [](const Tensors& in) {
        Tensor x = in[0].detach().requires_grad_(), w = in[1].detach().requires_grad_(),
               b = in[2].detach().requires_grad_();
        at::layer_norm(x, {6}, w, b).pow(3).sum().backward();
        return Tensors{x.grad(), w.grad(), b.grad()};
      }
  );
}

TEST_CASE("shapes") {
  compare("moves", {numbers({2, 3, 4})}, [](const Tensors& in) {
    const Tensor x = in[0];
    Tensors all{
        x.transpose(1, 2),
        x.permute({2, 0, -2}),
        x.reshape({6, 4}).t(),
        x.unsqueeze(1).squeeze(1),
        x.slice(1, 1, 3),
        x.clone(),
        at::zeros_like(x).copy_(x.select(0, 0)),
        x.select(1, 0).unsqueeze(1).squeeze(),
        at::slice_scatter(x, x.slice(2, 0, 4, 2) * 3, 2, 1, 4, 2),
        x.slice(2, 0, 4, 3),
        x.slice(0, -1),
        x.select(1, -1),
        x.flip({0, 2}),
        at::cat({x, x.narrow(2, 1, 2)}, 2),
        at::stack({x, x * 2}, 1),
        at::constant_pad_nd(x, {1, 2, 0, 1}, 0.5),
        x.expand({5, 2, 3, 4}),
        x[0].tril(),
        x[1].triu(1),
        x[0].tril(-1),
        at::slice_scatter(x, x.narrow(1, 0, 1) * 3, 1, 2, 3),
        at::select_scatter(x, x.select(0, 0), 0, 1)};
    for (const Tensor& part : x.split(3, 2)) {
      all.push_back(part);
    }
    for (const Tensor& part : x.split_with_sizes({1, 3}, 2)) {
      all.push_back(part);
    }
    for (const Tensor& part : x.unbind(1)) {
      all.push_back(part);
    }
    return all;
  });
  compare("numbers", {numbers({3})}, [](const Tensors& in) {
    const auto whole = in[0].options().dtype(at::kLong);
    return Tensors{
        at::arange(5, whole), at::arange(2, 7, in[0].options()), at::arange(1, 9, 3, whole)};
  });
}

TEST_CASE("products, reductions, indices") {
  const Tensor a = numbers({3, 4}), b = numbers({4, 5}, 0.3), c = numbers({2, 3, 4}),
               d = numbers({2, 4, 2});
  compare("products", {a, b, c, d, numbers({5})}, [](const Tensors& in) {
    return Tensors{
        in[0].mm(in[1]),
        in[2].bmm(in[3]),
        at::matmul(in[2], in[3]),
        at::linear(in[0], in[1].t(), in[4]),
        at::addmm(in[4], in[0], in[1], 0.5, 2),
        at::baddbmm(in[2].bmm(in[3]), in[2], in[3], 0, 3)};
  });
  compare("reductions", {c}, [](const Tensors& in) {
    const Tensor x = in[0];
    return Tensors{
        x.sum(),
        x.sum(at::IntArrayRef{0, -1}),
        x.sum(1, true),
        x.mean(),
        x.mean(at::IntArrayRef{1, 2}, true),
        x.amax(at::IntArrayRef{2}),
        x.amax(at::IntArrayRef{0, 1}, true),
        x.max(),
        x.gt(1).any(),
        x.gt(0).any(1),
        x.gt(-9).all(),
        x.lt(0.5).all(2, true),
        x.norm(),
        at::softmax(x, 1),
        at::log_softmax(x, -1),
        at::logsumexp(x, at::IntArrayRef{0, 2}),
        x.gt(0).sum(),
        (x * 9).to(at::kInt).sum(at::kDouble)};
  });
  compare("indices", {numbers({7, 3}), ids({2, 4}, 7), ids({5, 1}, 3)}, [](const Tensors& in) {
    const Tensor rows = in[0].slice(0, 0, 5);
    Tensor table = in[0].detach().requires_grad_();
    at::embedding(table, in[1]).pow(2).sum().backward();
    Tensor picked = rows.detach().requires_grad_();
    picked.gather(1, in[2]).pow(3).sum().backward();
    return Tensors{
        at::embedding(in[0], in[1]),
        in[0].index_select(0, in[1][1]),
        rows.gather(1, in[2]),
        table.grad(),
        picked.grad(),
        in[0].index_add(0, in[2].reshape({-1}), rows, 2)};
  });
}

TEST_CASE("indices of several elements") {
  const Tensor x = numbers({6, 5}), picks = ids({6, 2}, 5), ones = at::ones({6, 2}, at::kDouble);
  compare("rows", {x, picks, ones}, [](const Tensors& in) {
    const Tensor table = at::zeros({6, 5}, in[0].options());
    const Tensor four = at::arange(4, in[1].options()).view({4, 1}).expand({4, 5});
    return Tensors{
        in[0].gather(1, in[1]),
        in[0].gt(0).gather(1, in[1]),
        table.scatter(1, in[1], in[2] * 3),
        table.scatter(1, in[1], 2),
        table.scatter_add(1, in[1], in[2]),
        table.scatter(0, four, in[0].narrow(0, 0, 4)),
        table.index_copy(0, in[1].select(1, 0).narrow(0, 0, 3), in[0].narrow(0, 0, 3))};
  });
  compare("orders", {x}, [](const Tensors& in) {
    const auto [values, places] = in[0].topk(3, -1);
    const auto [sorted, order] = (in[0] * 2).floor().sort(/*stable=*/true, 0, /*descending=*/true);
    return Tensors{
        values,
        places,
        sorted,
        order,
        in[0].cumsum(0),
        in[0].gt(0).cumsum(1),
        (in[0] * 7).floor_divide(2)};
  });
}

TEST_CASE("every lowering was tried") {
  if (mh::xla_cpu() == nullptr) {
    return;
  }
  using namespace mh::program::stablehlo;
  // Forms of others under another name, and what only passes through a step's own recording.
  const std::set<std::string> same_as_others{
      "aten::_reshape_alias",
      "aten::add_.Tensor",
      "aten::alias",
      "aten::bitwise_and.Tensor",
      "aten::bitwise_or.Scalar",
      "aten::bitwise_right_shift.Tensor",
      "aten::bitwise_xor.Scalar",
      "aten::copy_",
      "aten::div.Scalar",
      "aten::empty.memory_format",
      "aten::empty_like",
      "aten::empty_strided",
      "aten::fill.Tensor",
      "aten::fill_.Scalar",
      "aten::full_like",
      "aten::lift_fresh",
      "aten::mul.Scalar",
      "aten::mul_.Tensor",
      "aten::new_empty",
      "aten::new_empty_strided",
      "aten::ones_like",
      "aten::sub_.Tensor",
      "aten::zero",
      "aten::zero_"};
  std::set<std::string> untried;
  for (const auto table :
       {elementwise_lowerings(),
        shape_lowerings(),
        product_lowerings(),
        reduction_lowerings(),
        index_lowerings()}) {
    for (const auto& row : table) {
      if (!seen().contains(std::string(row.op)) && !same_as_others.contains(std::string(row.op))) {
        untried.insert(std::string(row.op));
      }
    }
  }
  std::string text;
  for (const auto& op : untried) {
    text += op + " ";
  }
  CHECK_MESSAGE(untried.empty(), text);
}

} // namespace
