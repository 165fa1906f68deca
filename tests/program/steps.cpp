// Whole training steps as programs on XLA's CPU plugin, next to the same steps on LibTorch's CPU, in float64: every weight
// and optimizer state after three of them.

#include "core/program/step_program.hpp"
#include "core/session/session.hpp"
#include "core/step/sample_arrays.hpp"
#include "megahost/error.hpp"
#include "tests/dist/small_recipe.hpp"
#include "xla_cpu.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

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

/// The largest difference after three steps under a layout from one rank on LibTorch's CPU: of losses,
/// norms and all tensors.
double difference(const Settings& settings, const std::string& layout) {
  const Recipe one = small_recipe(with(settings), ""),
               recipe = small_recipe(with(settings), layout);
  const auto step = program::step_program(recipe, small_host(), {.dtype = at::kDouble});
  Trained real(one);
  std::map<std::string, Tensor> whole; // the tensors of one rank, views of what trains
  for (const auto& stored : real.weights->stored()) {
    whole[stored.name] = stored.data.detach();
  }
  const auto& client = *xla_cpu();
  const auto ranks = static_cast<size_t>(step.ranks);
  std::vector<size_t> devices(ranks);
  std::iota(devices.begin(), devices.end(), 0);
  const auto executable = client.compile(step.module, devices);
  std::vector<std::vector<pjrt::PjrtBuffer>> tensors(ranks);
  std::vector<std::vector<Tensor>> first(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < step.tensors; ++i) {
      const auto& port = step.inputs[i];
      first[rank].push_back(piece_of(whole.at(port.name), step.offsets[rank][i], port.sizes).clone()
      );
      tensors[rank].push_back(client.upload(first[rank].back(), rank));
    }
  }
  double worst = 0, moved = 0;
  for (int64_t number = 1; number <= 3; ++number) {
    const auto of_one = real.session->layout();
    const int64_t samples = (number - 1) * of_one.global();
    auto batches = load_batches(*real.session->corpus, Split::train, samples, of_one);
    for (size_t m = 0; m < batches.size(); ++m) { // half of all tokens count, others on each rank
      const int64_t quarters = batches.size() == 1 ? 2 : m == 0 ? 3 : 1;
      batches[m].arrays.at("loss_mask").narrow(0, 0, of_one.seq * quarters / 4).zero_();
    }
    const double lr = 1e-2 / static_cast<double>(number), decay = 0.1;
    const StepOptions options{
        .seed = static_cast<uint64_t>(number) * 0x123456789abcdefULL,
        .clip = recipe.optimizer.clip_grad,
        .update = {.step = number, .lr = lr}};
    std::vector<std::vector<pjrt::PjrtBuffer>> others(ranks);
    std::vector<std::vector<const pjrt::PjrtBuffer*>> arguments(ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      auto values = program::step_arrays(batches, step, static_cast<int64_t>(rank));
      values.merge(program::step_numbers(batches, options, decay));
      values["rank"] = at::scalar_tensor(static_cast<int64_t>(rank), at::kInt);
      others[rank].reserve(step.inputs.size());
      for (size_t i = 0; i < step.inputs.size(); ++i) {
        const auto& port = step.inputs[i];
        if (i >= step.tensors) {
          others[rank].push_back(client.upload(values.at(port.name).to(port.dtype), rank));
        }
        arguments[rank].push_back(i < step.tensors ? &tensors[rank][i] : &others[rank].back());
      }
    }
    auto results = executable->run(arguments);
    real.weights->set_weight_decay(decay);
    const c10::AutoGradMode with_grad(true);
    const auto wanted = train_step(
        real.session->passes(), *real.weights, *real.session->optimizer, batches, options
    );
    REQUIRE(wanted.updated);
    const auto number_at = [&](size_t i) {
      const Tensor value = at::empty({}, at::TensorOptions().dtype(step.outputs[i].dtype));
      results[0][i].copy_to(value);
      return value.to(at::kDouble).item<double>();
    };
    const size_t losses = step.outputs.size() - step.tensors - 1;
    REQUIRE(losses == wanted.losses.size());
    for (size_t i = 0; i < losses; ++i) {
      worst = std::max(worst, std::abs(number_at(step.tensors + i) - wanted.losses[i].value));
    }
    worst = std::max(
        worst,
        std::abs(number_at(step.outputs.size() - 1) - wanted.gradient_norm) / wanted.gradient_norm
    );
    for (auto& of_rank : results) {
      of_rank.erase(of_rank.begin() + static_cast<std::ptrdiff_t>(step.tensors), of_rank.end());
    }
    tensors = std::move(results);
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < step.tensors; ++i) {
      const auto& port = step.inputs[i];
      const Tensor wanted = piece_of(whole.at(port.name), step.offsets[rank][i], port.sizes);
      const Tensor got = at::empty_like(wanted);
      tensors[rank][i].copy_to(got);
      moved = std::max(moved, (wanted - first[rank][i]).abs().max().item<double>());
      worst = std::max(worst, (got - wanted).abs().max().item<double>());
    }
  }
  CHECK(moved > 1e-4);
  MESSAGE(
      settings.front(),
      " ",
      layout,
      ": ",
      step.operators,
      " operators, ",
      step.tensors,
      " tensors, difference ",
      worst
  );
  return worst;
}

void check_step(const Settings& settings, const std::string& layout = "") {
  if (xla_cpu() != nullptr) {
    CAPTURE(settings.front());
    CAPTURE(layout);
    CHECK(difference(settings, layout) < 1e-10);
  }
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

TEST_CASE("context parallel") {
  check_step({"model.use=llama"}, "context=2,context_method=all_gather");
  check_step({"model.use=llama"}, "context=2,context_method=all_to_all");
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
  CHECK(refused({"model.use=gpt"}, "pipeline=2").find("parallel.pipeline is 2") == 0);
  CHECK(
      refused({"model.use=gpt", "optimizer.use=soap"}).find("reads its numbers on the host") !=
      std::string::npos
  );
  CHECK(
      refused({"model.use=llama"}, "context=2,context_method=ring")
          .find("send each other tensors one by one") != std::string::npos
  );
}

TEST_CASE("the text is the same each time, inputs have names") {
  const Recipe recipe = small_recipe(with({"model.use=llama"}), "");
  const auto step = program::step_program(recipe, small_host());
  CHECK(step.module == program::step_program(recipe, small_host()).module);
  CHECK(step.inputs.at(step.tensors).name == "microbatch.0.labels");
  CHECK(step.inputs.back().name == "optimizer.step");
  CHECK(step.outputs.back().name == "gradient_norm");
  CHECK(step.inputs.front().name == step.outputs.front().name);
  CHECK(step.module.find("f64") != std::string::npos); // the numbers of the update
}

} // namespace
