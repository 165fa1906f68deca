/// One program for all operations of the table: `test` compares them with plain ATen in float64,
/// for each type and instruction set; `gradient` with finite differences; `speed` times them
/// next to plain ATen; `support` lists which device has a kernel.

#include "core/kernels/level.hpp"
#include "core/kernels/ops.hpp"
#include "core/plan/cost.hpp"
#include "megahost/parallel.hpp"
#include "tests/kernels/operation.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>
#include <thread>

namespace mh::test {

uint64_t seed = 7; // seed of the inputs; the second argument

namespace {

using at::Tensor;

Tensors inputs_of(const Case& c, at::ScalarType type) {
  at::manual_seed(seed);
  Tensors inputs;
  for (const auto& shape : c.shapes) {
    inputs.push_back(at::randn(shape).to(type).requires_grad_());
  }
  return inputs;
}

Tensors widened(const Tensors& inputs) {
  Tensors wide;
  for (const auto& x : inputs) {
    wide.push_back(x.detach().to(at::kDouble).requires_grad_());
  }
  return wide;
}

/// The value, and the gradients of its sum weighted by something that is no constant.
Tensors value_and_gradients(const Compute& f, const Tensors& inputs) {
  const Tensor y = f(inputs);
  Tensors all{y.detach()};
  if (y.requires_grad()) {
    at::manual_seed(seed + 1);
    const Tensor w = at::randn(y.sizes()).to(at::kBFloat16).to(y.scalar_type());
    for (const auto& gradient : torch::autograd::grad({y}, inputs, {w})) {
      all.push_back(gradient);
    }
  }
  return all;
}

/// Memory full of NaNs: what reads before it writes shows.
class Poisoned : public c10::Allocator {
public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (data != nullptr) {
      std::memset(data, 0xff, bytes);
    }
    return {data, data, &std::free, at::kCPU};
  }

  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &std::free; }

  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

/// Whether sums are made in one order, whatever the number of threads.
bool same_on_threads(const Compute& f, const Tensors& inputs, const Tensors& expected) {
  const int threads = at::get_num_threads();
  bool same = true;
  for (const int other : {1, 3, 8}) {
    at::set_num_threads(other);
    const Tensors found = value_and_gradients(f, inputs);
    for (size_t i = 0; i < found.size(); ++i) {
      same = same && at::equal(found[i], expected.at(i));
    }
  }
  at::set_num_threads(threads);
  return same;
}

/// Without OpenMP the loops of LibTorch's headers run on one thread, and nothing says so.
bool loops_share_threads() {
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  std::array<std::thread::id, 3> ran;
  parallel_for(0, 3, 1, [&](int64_t begin, int64_t end) {
    std::fill(ran.begin() + begin, ran.begin() + end, std::this_thread::get_id());
  });
  at::set_num_threads(threads);
  const size_t found = std::set(ran.begin(), ran.end()).size();
  const bool good = found == ran.size();
  std::printf("%-6s loops run on %zu threads of 3\n", good ? "ok" : "FAILED", found);
  return good;
}

/// A row that is no number is the only one: check's search for rows that depend on others relies on
/// it. oneDNN's products in tile registers break it.
bool rows_are_apart() {
  for (const int64_t depth : {64, 300}) {
    const Tensor a = at::ones({70, depth}, at::kBFloat16), b = at::ones({depth, 40}, at::kBFloat16);
    a.select(0, 5).fill_(std::nan(""));
    const bool good = ops::product(a, b).isnan().any(1).sum().item().toLong() == 1;
    if (!good) {
      std::printf(
          "FAILED a row of bf16 products of depth %d changes others\n", static_cast<int>(depth)
      );
      return false;
    }
  }
  return true;
}

double distance(const Tensor& a, const Tensor& b) {
  const Tensor wide = b.to(at::kDouble);
  return ((a.to(at::kDouble) - wide).norm() / (wide.norm() + 1e-30)).item<double>();
}

const char* type_name(at::ScalarType type) {
  return type == at::kDouble ? "float64" : type == at::kFloat ? "float32" : "bfloat16";
}

bool test_case(const Operation& op, const Case& c, at::ScalarType type, std::string_view level) {
  const Tensors inputs = inputs_of(c, type);
  const Tensors ours = value_and_gradients(c.ours, inputs);
  const Tensors plain = value_and_gradients(c.plain, widened(inputs));
  const double allowed = type == at::kDouble  ? op.double_tolerance
                         : type == at::kFloat ? op.float_tolerance
                                              : op.bf16_tolerance;
  double worst = 0;
  size_t where = 0; // 0: the value; i: the gradient of input i
  for (size_t i = 0; i < ours.size(); ++i) {
    const double found = distance(ours[i], plain.at(i));
    if (!(found <= worst)) { // a NaN is the worst
      worst = found;
      where = i;
    }
  }
  const bool kernel = std::ranges::find(op.kernels, type) != op.kernels.end();
  const bool same = !kernel || same_on_threads(c.ours, inputs, ours);
  const bool good = worst <= allowed && ours.size() == plain.size() && same;
  std::printf(
      "%-6s %-14s %-28s %-8s %-10.*s %s %zu off by %.1e of %.0e%s\n",
      good ? "ok" : "FAILED",
      op.name.c_str(),
      c.name.c_str(),
      type_name(type),
      static_cast<int>(level.size()),
      level.data(),
      where == 0 ? "value" : "gradient",
      where,
      worst,
      allowed,
      same ? "" : ", and other bits on other numbers of threads"
  );
  return good;
}

int test() {
  static Poisoned poisoned;
  c10::SetCPUAllocator(&poisoned, /*priority=*/100);
  int failed = (loops_share_threads() ? 0 : 1) + (rows_are_apart() ? 0 : 1);
  for (const auto& level : kernels::levels()) {
    kernels::use_level(level);
    for (const auto& op : operations()) {
      for (const auto& c : op.cases) {
        for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
          failed += test_case(op, c, type, level.name) ? 0 : 1;
        }
      }
    }
  }
  return failed;
}

/// Central differences along a few random directions: each tests all elements of an input at once.
bool check_gradient(const Operation& op, const Case& c) {
  const Tensors inputs = inputs_of(c, at::kDouble);
  const Tensors exact = value_and_gradients(c.ours, inputs);
  if (exact.size() == 1) {
    return true; // in place, without gradients
  }
  at::manual_seed(seed + 1);
  const Tensor w = at::randn(exact[0].sizes()).to(at::kBFloat16).to(at::kDouble);
  const at::NoGradGuard no_grad;
  double worst = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor direction = at::randn(inputs[i].sizes(), inputs[i].options().requires_grad(false));
    const auto along = [&](double step) {
      Tensors moved = inputs;
      moved[i] = inputs[i].detach() + direction * step;
      return (c.ours(moved) * w).sum().item<double>();
    };
    constexpr double kStep = 1e-5;
    const double slope = (along(kStep) - along(-kStep)) / (2 * kStep);
    const double found = (exact[i + 1] * direction).sum().item<double>();
    const double size = (exact[i + 1].norm() * direction.norm()).item<double>();
    worst = std::max(worst, std::abs(slope - found) / (size + 1e-12));
  }
  const bool good = worst < 1e-7;
  std::printf(
      "%-6s %-14s %-28s off by %.1e\n",
      good ? "ok" : "FAILED",
      op.name.c_str(),
      c.name.c_str(),
      worst
  );
  return good;
}

int gradient() {
  int failed = 0;
  for (const auto& op : operations()) {
    for (const auto& c : op.cases) {
      failed += check_gradient(op, c) ? 0 : 1;
    }
  }
  return failed;
}

double milliseconds(const Compute& f, const Tensors& inputs) {
  using Clock = std::chrono::steady_clock;
  const Tensors first = value_and_gradients(f, inputs);
  double best = 1e30;
  const Tensor w = first[0].clone();
  for (int i = 0; i < 9; ++i) {
    const auto start = Clock::now();
    const Tensor y = f(inputs);
    if (y.requires_grad()) {
      const auto gradients = torch::autograd::grad({y}, inputs, {w});
    }
    best = std::min(best, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  return best;
}

int speed() {
  std::printf("forward and backward, best of 9, in ms\n");
  std::printf("%-14s %-36s %-9s %8s %8s\n", "operation", "", "", "ours", "ATen");
  for (const auto& op : operations()) {
    for (const auto type : op.kernels) {
      const Tensors inputs = inputs_of(op.large, type);
      const double ours = milliseconds(op.large.ours, inputs);
      const double rival = milliseconds(op.large.rival ? op.large.rival : op.large.plain, inputs);
      std::printf(
          "%-14s %-36s %-9s %8.2f %8.2f  %.1f times\n",
          op.name.c_str(),
          op.large.name.c_str(),
          type_name(type),
          ours,
          rival,
          rival / ours
      );
    }
  }
  return 0;
}

int support() {
  int missing = 0;
  for (const auto& op : operations()) {
    for (const auto& name : op.operators) {
      const auto handle = c10::Dispatcher::singleton().findSchema({name, ""});
      std::printf("%-34s", name.c_str());
      for (const auto key :
           {c10::DispatchKey::CPU,
            c10::DispatchKey::CUDA,
            c10::DispatchKey::XLA,
            c10::DispatchKey::PrivateUse1, // another library's device
            c10::DispatchKey::Meta}) {
        const bool there = handle && handle->hasComputedKernelForDispatchKey(key);
        missing += there ? 0 : 1;
        std::printf(" %s %s", c10::toString(key), there ? "yes" : "NO");
      }
      const bool counted = ops::find_cost(name) != nullptr;
      missing += counted ? 0 : 1;
      std::printf(" cost %s; kernels for", counted ? "known" : "UNKNOWN");
      for (const auto type : op.kernels) {
        std::printf(" %s", type_name(type));
      }
      std::printf(", plain ATen otherwise\n");
    }
  }
  return missing;
}

} // namespace

} // namespace mh::test

int main(int argc, char** argv) {
  const std::string_view mode = argc == 2 || argc == 3 ? argv[1] : "";
  mh::test::seed = argc == 3 ? std::strtoull(argv[2], nullptr, 10) : 7;
  mh::ops::ensure_registered();
  int failed = 2;
  if (mode == "test") {
    failed = mh::test::test();
  } else if (mode == "gradient") {
    failed = mh::test::gradient();
  } else if (mode == "speed") {
    failed = mh::test::speed();
  } else if (mode == "support") {
    failed = mh::test::support();
  } else {
    std::fprintf(stderr, "usage: operations test|gradient|speed|support [SEED]\n");
  }
  if (failed != 0) {
    std::printf("%d failed\n", failed);
  }
  return failed == 0 ? 0 : 1;
}
