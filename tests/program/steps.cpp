// Training steps as programs on XLA's CPU plugin, next to the same steps on LibTorch's CPU, in float64: every weight
// and optimizer state after three of them.

#include "core/program/step_program.hpp"
#include "core/program/step_run.hpp"
#include "core/session/session.hpp"
#include "core/step/sample_arrays.hpp"
#include "megahost/error.hpp"
#include "megahost/program_device.hpp"
#include "tests/dist/small_recipe.hpp"
#include "xla_cpu.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace mh;
using at::Tensor;
using Settings = std::vector<std::string>;

Settings with(Settings more) {
  Settings all{
      "model.layers=2",
      "data.use=mock",
      "precision=fp32",
      "batch.global=4",
      "batch.micro=2",
      "recompute.use=none"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

struct Trained {
  explicit Trained(const Recipe& recipe)
      : session(make_session(recipe, small_host(), {.dtype = at::kDouble})) {
    session->allocate_gradients();
    weights = std::make_unique<Weights>(
        *session->gradients, *session->optimizer, weight_options(recipe, session->mesh)
    );
  }

  std::unique_ptr<Session> session;
  std::unique_ptr<Weights> weights;
};

/// A rank's piece of a global tensor.
Tensor
piece_of(Tensor whole, const std::vector<int64_t>& offset, const std::vector<int64_t>& sizes) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), offset[d], sizes[d]);
  }
  return whole.contiguous();
}

/// XLA's CPU plugin as a device of programs.
class XlaCpuDevice : public ProgramDevice {
public:
  struct Held : Buffer {
    explicit Held(pjrt::PjrtBuffer of_plugin)
        : buffer(std::move(of_plugin)) {}

    void copy_to(const Tensor& host) const override { buffer.copy_to(host); }

    pjrt::PjrtBuffer buffer;
  };

  struct Compiled : Program {
    explicit Compiled(std::unique_ptr<pjrt::Executable> of_plugin)
        : executable(std::move(of_plugin)) {}

    std::vector<std::vector<std::unique_ptr<Buffer>>>
    run(const std::vector<std::vector<const Buffer*>>& arguments) override {
      std::vector<std::vector<const pjrt::PjrtBuffer*>> given;
      for (const auto& of_rank : arguments) {
        auto& own = given.emplace_back();
        for (const Buffer* one : of_rank) {
          own.push_back(&static_cast<const Held&>(*one).buffer);
        }
      }
      std::vector<std::vector<std::unique_ptr<Buffer>>> results;
      for (auto& of_rank : executable->run(given)) {
        auto& own = results.emplace_back();
        for (auto& one : of_rank) {
          own.push_back(std::make_unique<Held>(std::move(one)));
        }
      }
      return results;
    }

    std::unique_ptr<pjrt::Executable> executable;
  };

  std::string summary() const override { return "XLA's CPU plugin"; }

  double peak_flops(at::ScalarType) const override { return 0; }

  int64_t memory() const override { return 0; }

  int64_t count() const override { return static_cast<int64_t>(xla_cpu()->devices()); }

  std::unique_ptr<Buffer> upload(const Tensor& host, int64_t device) const override {
    return std::make_unique<Held>(xla_cpu()->upload(host, static_cast<size_t>(device)));
  }

  std::unique_ptr<Buffer> copy(const Buffer& tensor, int64_t device) const override {
    const auto& own = static_cast<const Held&>(tensor).buffer;
    return std::make_unique<Held>(xla_cpu()->copy(own, static_cast<size_t>(device)));
  }

  std::unique_ptr<Program>
  compile(const std::string& module, const std::vector<int64_t>& devices) const override {
    return std::make_unique<Compiled>(
        xla_cpu()->compile(module, std::vector<size_t>(devices.begin(), devices.end()))
    );
  }
};

/// A step's modules on XLA's CPU plugin, with each rank's tensors by their names.
class ProgramRun {
public:
  /// Modules by their texts and devices, for runs of one test.
  using Executables = std::
      map<std::pair<std::string, std::vector<int64_t>>, std::unique_ptr<ProgramDevice::Program>>;

  ProgramRun(const program::StepProgram& step, Executables& compiled)
      : compiled_(step)
      , held_(static_cast<size_t>(step.ranks())) {
    for (size_t s = 0; s < step.stages.size(); ++s) {
      const auto& stage = step.stages[s];
      for (const auto& module : stage.modules) {
        auto& executable = compiled[{module.text, stage.ranks}];
        if (executable == nullptr) {
          executable = device_.compile(module.text, stage.ranks);
        }
        compiled_.stages[s].programs.push_back(executable.get());
      }
      for (const int64_t rank : stage.ranks) {
        for (const auto& port : stage.carried) {
          put(rank, port, at::zeros(port.sizes, port.dtype));
        }
      }
    }
  }

  void put(int64_t rank, const program::Port& port, const Tensor& value) {
    held_[static_cast<size_t>(rank)][port.name] = device_.upload(value.to(port.dtype), rank);
  }

  Tensor get(int64_t rank, const program::Port& port) const {
    const Tensor value = at::empty(port.sizes, port.dtype);
    held_[static_cast<size_t>(rank)].at(port.name)->copy_to(value);
    return value;
  }

  double number(const program::StepNumber& number) const {
    double sum = 0;
    for (const size_t stage : number.stages) {
      const int64_t rank = compiled_.step.stages[stage].ranks.front();
      sum += get(rank, number.port).to(at::kDouble).item<double>();
    }
    return sum;
  }

  void step(std::span<const Batch> batches, const StepOptions& options, double decay) {
    const auto data = program::step_data(device_, compiled_.step, batches, options, decay);
    program::StepRun(device_, compiled_, data, held_).run();
  }

  /// Names of all tensors that a rank holds between steps.
  std::set<std::string> names(int64_t rank) const {
    std::set<std::string> names;
    for (const auto& [name, buffer] : held_[static_cast<size_t>(rank)]) {
      names.insert(name);
    }
    return names;
  }

  int64_t memory() const { return compiled_.memory(); }

private:
  XlaCpuDevice device_;
  program::CompiledStep compiled_;
  std::vector<program::BuffersByName> held_;
};

/// Calls `f` with each tensor of a checkpoint that a rank holds, its rank and its offset.
template <class F>
void for_each_tensor(const program::StepProgram& step, const F& f) {
  for (const auto& stage : step.stages) {
    for (size_t replica = 0; replica < stage.ranks.size(); ++replica) {
      for (size_t i = 0; i < stage.tensors.size(); ++i) {
        f(stage.ranks[replica], stage.tensors[i], stage.offsets[replica][i]);
      }
    }
  }
}

/// The largest difference after three steps under a layout from one rank on LibTorch's CPU: of losses,
/// norms and all tensors.
double difference(const Settings& settings, const std::string& layout, bool scan) {
  const Recipe one = small_recipe(with(settings), ""),
               recipe = small_recipe(with(settings), layout);
  const auto step =
      program::step_program(recipe, small_host(), {.dtype = at::kDouble, .scan = scan});
  Trained real(one);
  std::map<std::string, Tensor> whole; // the tensors of one rank, views of what trains
  for (const auto& stored : real.weights->stored()) {
    whole[stored.name] = stored.data.detach();
  }
  ProgramRun::Executables compiled;
  ProgramRun run(step, compiled);
  std::map<std::pair<int64_t, std::string>, Tensor> first;
  for_each_tensor(step, [&](int64_t rank, const program::Port& port, const auto& offset) {
    const Tensor own = piece_of(whole.at(port.name), offset, port.sizes).clone();
    first[{rank, port.name}] = own;
    run.put(rank, port, own);
  });
  double worst = 0, moved = 0;
  for (int64_t number = 1; number <= 3; ++number) {
    const auto of_one = real.session->layout();
    const int64_t samples = (number - 1) * of_one.global();
    auto batches = load_batches(*real.session->corpus, Split::train, samples, of_one);
    for (size_t m = 0; m < batches.size(); ++m) { // half of all tokens count, others on each rank
      const int64_t quarters = batches.size() == 1 ? 2 : m % 2 == 0 ? 3 : 1;
      batches[m].arrays.at("loss_mask").narrow(0, 0, of_one.seq * quarters / 4).zero_();
    }
    const double lr = 1e-2 / static_cast<double>(number), decay = 0.1;
    const StepOptions options{
        .seed = static_cast<uint64_t>(number) * 0x123456789abcdefULL,
        .clip = recipe.optimizer.clip_grad,
        .update = {.step = number, .lr = lr}};
    run.step(batches, options, decay);
    real.weights->set_weight_decay(decay);
    const c10::AutoGradMode with_grad(true);
    const auto wanted = train_step(
        real.session->passes(), *real.weights, *real.session->optimizer, batches, options
    );
    REQUIRE(wanted.updated);
    const auto numbers = step.numbers();
    REQUIRE(numbers.size() == wanted.losses.size() + 1);
    for (size_t i = 0; i < wanted.losses.size(); ++i) {
      worst = std::max(worst, std::abs(run.number(numbers[i]) - wanted.losses[i].value));
    }
    worst = std::max(
        worst, std::abs(run.number(numbers.back()) - wanted.gradient_norm) / wanted.gradient_norm
    );
  }
  for_each_tensor(step, [&](int64_t rank, const program::Port& port, const auto& offset) {
    const Tensor wanted = piece_of(whole.at(port.name), offset, port.sizes);
    const Tensor got = run.get(rank, port);
    moved = std::max(moved, (wanted - first.at({rank, port.name})).abs().max().item<double>());
    worst = std::max(worst, (got - wanted).abs().max().item<double>());
  });
  CHECK(moved > 1e-4);
  std::string sizes;
  for (const auto& stage : step.stages) {
    for (const auto& module : stage.modules) {
      sizes += module.name + " " + std::to_string(module.operators) + " operators, ";
      if (scan && module.per_microbatch) { // forward and backward
        sizes += "of it loops of " + module.loops + ", ";
        CHECK(std::ranges::count(module.loops, 'x') >= 2);
      }
    }
  }
  MESSAGE(settings.front(), " ", layout, ": ", sizes, "difference ", worst);
  return worst;
}

void check_step(const Settings& settings, const std::string& layout = "", bool scan = false) {
  if (xla_cpu() != nullptr) {
    CAPTURE(settings.front());
    CAPTURE(layout);
    CHECK(difference(settings, layout, scan) < 1e-10);
  }
}

/// Checks the step of four layers as loops.
void check_scan(Settings settings, const std::string& layout = "") {
  settings.emplace_back("model.layers=4");
  check_step(settings, layout, /*scan=*/true);
}

TEST_CASE("gpt") {
  check_step({"model.use=gpt"});
}

TEST_CASE("llama, clipped") {
  check_step({"model.use=llama", "optimizer.clip_grad=0.1"});
}

TEST_CASE("everything recomputed") {
  check_step({"model.use=llama", "recompute.use=full"});
}

TEST_CASE("muon") {
  check_step({"model.use=llama", "optimizer.use=muon"});
}

TEST_CASE("adafactor") {
  check_step({"model.use=llama", "optimizer.use=adafactor", "optimizer.beta1=0.5"});
}

TEST_CASE("schedule-free AdamW") {
  check_step({"model.use=llama", "optimizer.use=schedule_free_adamw"});
}

TEST_CASE("a mixture whose experts have places of their own") {
  Settings mixture = small_mixture();
  for (const char* set :
       {"model.capacity_factor=1.2",
        "model.capacity_drop=probability",
        "model.capacity_pad=true",
        "model.vocab=256"}) {
    mixture.emplace_back(set);
  }
  check_step(mixture);
}

TEST_CASE("sgd with momentum, one microbatch") {
  check_step({"model.use=gpt", "optimizer.use=sgd", "batch.micro=4"});
}

TEST_CASE("tensor parallel") {
  check_step({"model.use=gpt", "model.vocab=256"}, "tensor=2");
  check_step({"model.use=llama", "model.vocab=256"}, "tensor=2,sequence=true");
}

TEST_CASE("data parallel") {
  check_step({"model.use=gpt"}, "data=2");
  check_step({"model.use=llama", "model.vocab=256"}, "data=2,tensor=2,sequence=true");
}

TEST_CASE("dropout's masks, and weights and state sharded over data-parallel ranks") {
  check_step({"model.use=gpt", "model.vocab=256", "model.dropout=0.3"}, "data=2,tensor=2,zero=1");
}

TEST_CASE("stages of a pipeline, next to other axes") {
  const Settings tied{"model.use=gpt", "model.vocab=256", "batch.global=8", "model.dropout=0.2"},
      untied{"model.use=llama", "model.vocab=256", "batch.global=8"};
  check_step(untied, "pipeline=2");
  check_step(tied, "pipeline=2");
  check_step(tied, "pipeline=2,tensor=2,sequence=true");
  check_step(untied, "pipeline=2,data=2,zero=1");
}

TEST_CASE("four stages") {
  check_step({"model.use=gpt", "model.layers=4", "batch.global=12"}, "pipeline=4");
}

TEST_CASE("virtual stages, and weight gradients that are put off") {
  const Settings four{"model.use=llama", "model.layers=4", "model.tied=false"};
  check_step(four, "pipeline=2,virtual_stages=2");
  check_step(four, "pipeline=2,virtual_stages=2,schedule=zb-v");
}

TEST_CASE("context parallel") {
  check_step({"model.use=llama"}, "context=2,context_method=all_gather");
  check_step({"model.use=llama"}, "context=2,context_method=all_to_all");
}

TEST_CASE("layers as a loop") {
  check_scan({"model.use=gpt"});
  check_scan({"model.use=llama", "optimizer.clip_grad=0.1"});
}

TEST_CASE("layers as a loop, recomputed") {
  check_scan({"model.use=llama", "recompute.use=full"});
}

TEST_CASE("layers as a loop over ranks") {
  check_scan({"model.use=gpt", "model.vocab=256", "model.dropout=0.3"}, "tensor=2");
  check_scan({"model.use=llama", "model.vocab=256"}, "data=2,tensor=2,sequence=true,zero=1");
}

/// The tensors and numbers that a first step leaves on all ranks. No two rows of a tensor are alike
/// before it, as those of a norm's weights are at first.
std::vector<Tensor> after_step(
    const program::StepProgram& step, const Trained& real, ProgramRun::Executables& compiled
) {
  ProgramRun run(step, compiled);
  std::map<std::string, Tensor> whole; // no two rows alike
  for (const auto& stored : real.weights->stored()) {
    const Tensor apart = at::linspace(0, 0.1, stored.data.numel(), stored.data.options());
    whole[stored.name] = stored.data.detach() + apart.view_as(stored.data);
  }
  for_each_tensor(step, [&](int64_t rank, const program::Port& port, const auto& offset) {
    run.put(rank, port, piece_of(whole.at(port.name), offset, port.sizes));
  });
  const auto batches = load_batches(*real.session->corpus, Split::train, 0, real.session->layout());
  run.step(batches, {.clip = 1.0, .update = {.step = 1, .lr = 1e-2}}, 0.1);
  std::vector<Tensor> left;
  for_each_tensor(step, [&](int64_t rank, const program::Port& port, const auto&) {
    left.push_back(run.get(rank, port));
  });
  for (const auto& number : step.numbers()) {
    for (const size_t stage : number.stages) {
      for (const int64_t rank : step.stages[stage].ranks) {
        left.push_back(run.get(rank, number.port));
      }
    }
  }
  return left;
}

/// Each collective of two ranks in turn without the other rank: sums of one rank alone, and pieces
/// in the places of others.
void check_collectives(const Settings& settings, const std::string& layout) {
  if (xla_cpu() == nullptr) {
    return;
  }
  Settings small = with(settings);
  small.emplace_back("model.layers=1");
  const auto step =
      program::step_program(small_recipe(small, layout), small_host(), {.dtype = at::kDouble});
  const Trained real(small_recipe(small, ""));
  ProgramRun::Executables compiled;
  const auto whole = after_step(step, real, compiled);
  const std::string groups = "dense<[[0, 1]]> : tensor<1x2xi64>";
  int64_t collectives = 0;
  const auto& modules = step.stages.front().modules;
  for (size_t m = 0; m < modules.size(); ++m) {
    const std::string& text = modules[m].text;
    for (size_t at = text.find(groups); at != std::string::npos; at = text.find(groups, at + 1)) {
      const size_t line = text.rfind('\n', at) + 1;
      const std::string operation = text.substr(line, text.find("<{", line) - line);
      const bool sums = operation.find("stablehlo.all_reduce") != std::string::npos;
      auto changed = step;
      changed.stages.front().modules[m].text.replace(
          at,
          groups.size(),
          sums ? "dense<[[0], [1]]> : tensor<2x1xi64>" : "dense<[[1, 0]]> : tensor<1x2xi64>"
      );
      const auto left = after_step(changed, real, compiled);
      double worst = 0;
      for (size_t i = 0; i < left.size(); ++i) {
        const double difference = (left[i] - whole[i]).abs().max().item<double>();
        worst = std::isfinite(difference) ? std::max(worst, difference) : INFINITY;
      }
      CAPTURE(modules[m].name);
      CAPTURE(operation);
      CHECK(worst > 1e-9);
      ++collectives;
    }
  }
  MESSAGE(layout, ": ", collectives, " collectives");
  CHECK(collectives > 5);
}

TEST_CASE("each collective is missed where it is left out") {
  check_collectives({"model.use=llama", "model.vocab=256"}, "tensor=2,sequence=true");
  check_collectives({"model.use=llama"}, "data=2,zero=1");
}

TEST_CASE("what cannot be a program is refused in words") {
  const auto refused = [](const Settings& settings, const std::string& layout = "") {
    try {
      (void)program::step_program(small_recipe(with(settings), layout), small_host());
    } catch (const Error& error) {
      return std::string(error.what()) + " / " + error.hint();
    }
    return std::string("not refused");
  };
  CHECK(refused(small_mixture()).find("set model.capacity_factor") != std::string::npos);
  CHECK(
      refused({"model.use=gpt"}, "pipeline=4").find("is fewer than parallel.pipeline 4") !=
      std::string::npos
  );
  CHECK(
      refused({"model.use=gpt", "optimizer.use=soap"}).find("reads its numbers on the host") !=
      std::string::npos
  );
  CHECK(
      refused({"model.use=llama"}, "context=2,context_method=ring")
          .find("send each other tensors one by one") != std::string::npos
  );
}

TEST_CASE("the text is the same each time, and no longer for more microbatches") {
  const Recipe recipe = small_recipe(with({"model.use=llama"}), "");
  const auto step = program::step_program(recipe, small_host());
  const auto& modules = step.stages.front().modules;
  REQUIRE(modules.size() == 3);
  const auto again = program::step_program(recipe, small_host());
  const auto more = program::step_program(recipe, small_host(), {.microbatches = 32});
  for (size_t i = 0; i < 3; ++i) {
    CHECK(modules[i].text == again.stages.front().modules[i].text);
    CHECK(modules[i].operators == more.stages.front().modules[i].operators);
  }
  const auto& close = modules.back();
  CHECK(close.inputs.front().name == close.outputs.front().name);
  CHECK(close.inputs.back().name == "optimizer.step");
  CHECK(close.outputs.back().name == "gradient_norm");
  CHECK(close.text.find("f64") != std::string::npos); // the numbers of the update
  CHECK(close.text == more.stages.front().modules.back().text);
}

TEST_CASE("after a step that failed nothing is updated until the flag is cleared") {
  if (xla_cpu() == nullptr) {
    return;
  }
  const Recipe recipe = small_recipe(with({"model.use=gpt"}), "");
  const auto step = program::step_program(recipe, small_host(), {.dtype = at::kDouble});
  const Trained real(recipe);
  ProgramRun::Executables compiled;
  ProgramRun run(step, compiled);
  const auto& tensors = step.stages.front().tensors;
  const auto& port = tensors.front();
  for (const auto& stored : real.weights->stored()) {
    const auto own = std::ranges::find(tensors, stored.name, &program::Port::name);
    run.put(0, *own, stored.data.detach());
  }
  const auto batches = load_batches(*real.session->corpus, Split::train, 0, real.session->layout());
  const Tensor before = run.get(0, port);
  const program::Port failed{program::kFailed, at::kBool};
  const auto step_with = [&](double lr) {
    run.step(batches, {.clip = 1.0, .update = {.step = 1, .lr = lr}}, 0.1);
  };
  run.put(0, failed, at::scalar_tensor(true, at::kBool));
  step_with(1e-2);
  CHECK(run.get(0, port).equal(before));
  CHECK(run.get(0, failed).item<bool>());
  CHECK(std::isfinite(run.number(step.numbers().back())));
  run.put(0, failed, at::scalar_tensor(false, at::kBool));
  step_with(1e-2);
  CHECK_FALSE(run.get(0, port).equal(before));
  CHECK_FALSE(run.get(0, failed).item<bool>());
}

TEST_CASE("layers that keep what they have seen for other microbatches are refused") {
  Settings mixture = small_mixture();
  for (const char* set :
       {"model.capacity_factor=1.2",
        "model.capacity_drop=probability",
        "model.capacity_pad=true",
        "model.vocab=256",
        "model.balance=[\"bias\"]"}) {
    mixture.emplace_back(set);
  }
  CHECK_THROWS_WITH_AS(
      (void)program::step_program(small_recipe(with(mixture), ""), small_host()),
      doctest::Contains("a layer keeps what it has seen of a microbatch"),
      Error
  );
}

} // namespace
