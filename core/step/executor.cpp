#include "core/step/executor.hpp"

#include "core/model/plugin_call.hpp"
#include "core/step/batches.hpp"
#include "core/step/pipeline.hpp"
#include "core/step/transfers.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <memory>
#include <set>
#include <utility>

namespace mh {
namespace {

using Op = Instruction::Op;
using Edges = torch::autograd::edge_list;

/// A microbatch on the device; contexts point to the batch.
struct Microbatch {
  Microbatch(const Passes& passes, const Batch& host)
      : batch(to_device(host, passes.device)) {}

  Batch batch;
  std::shared_ptr<CachedTensors> cached = std::make_shared<CachedTensors>(); // by all its passes
};

/// A microbatch on its way through a chunk.
struct Pass {
  Pass(const Passes& passes, std::shared_ptr<Microbatch> of, StepMode mode)
      : microbatch(std::move(of))
      , context(passes.mesh, passes.rules, microbatch->batch, std::move(mode), microbatch->cached) {
  }

  std::shared_ptr<Microbatch> microbatch;
  StepContext context;
  Arrival input_arrival, gradient_arrival;
  State input;                     // leaves, whose gradients are handed on
  std::vector<at::Tensor> to_send; // outputs, later the inputs' gradients
  Edges roots;                     // where the outputs' gradients enter the graph
  torch::autograd::Edge loss;      // where the loss's does
  at::Tensor loss_gradient;
};

/// In a step, a stage cannot run further ahead than its schedule lets it. An evaluation has nothing
/// that comes back; a stage there waits for the next one, unless the model goes round the stages:
/// they could wait for one another forever.
size_t most_sends_ahead(const Model& model) {
  constexpr size_t kEvaluation = 4;
  return at::GradMode::is_enabled() || model.chunks() > 1 ? SIZE_MAX : kEvaluation;
}

class Executor {
public:
  Executor(const Passes& passes, std::span<const Batch> microbatches, const ExecuteOptions& options)
      : passes_(passes)
      , microbatches_(microbatches)
      , options_(options)
      , train_(at::GradMode::is_enabled())
      , args_(passes.pipeline == nullptr ? PipelineSchedule::Args() : passes.pipeline->args())
      , stage_(passes.mesh.coordinate(MeshAxis::pp))
      , counts_(passes.mesh, microbatches)
      , transfers_(passes.mesh.group(MeshAxis::pp), most_sends_ahead(passes.model)) {}

  LossSums run(std::span<const Instruction> instructions) {
    for (const auto& one : instructions) {
      if (one.op == Op::backward_input) {
        split_.insert(key(one));
      }
    }
    for (const auto& one : instructions) {
      tell(&one);
      step(one);
    }
    transfers_.finish();
    sums_.sum_metrics(passes_.mesh, options_.metrics);
    tell(nullptr);
    sums_.sum_losses(passes_.mesh);
    return std::move(sums_);
  }

private:
  using Key = std::pair<int32_t, int32_t>; // chunk, microbatch

  static Key key(const Instruction& one) { return {one.chunk, one.microbatch}; }

  void tell(const Instruction* one) const {
    if (passes_.before) {
      passes_.before(one);
    }
  }

  /// The stage of the chunk after (1) or before (-1) that of `one` in the model.
  [[nodiscard]] int64_t neighbor_stage(const Instruction& one, int64_t step) const {
    return args_.stage_of(args_.chunk_of(stage_, one.chunk) + step);
  }

  /// The microbatch's pass through that chunk, where it is on this stage; else null.
  Pass* neighbor_pass(const Instruction& one, int64_t step) {
    const int32_t chunk = neighbour(args_, stage_, one.chunk, step);
    return chunk < 0 ? nullptr : &pass({one.op, chunk, one.microbatch});
  }

  void step(const Instruction& one) {
    if (passes_.watch != nullptr) {
      passes_.watch->microbatch(one.microbatch);
    }
    switch (one.op) {
    case Op::receive_forward:
      receive_input(one);
      return;
    case Op::forward:
      forward(one);
      return;
    case Op::send_forward:
      transfers_.send(neighbor_stage(one, 1), std::exchange(pass(one).to_send, {}));
      end_if_forward_only(one);
      return;
    case Op::receive_backward:
      receive_gradients(one);
      return;
    case Op::backward:
    case Op::backward_input:
      backward(one);
      return;
    case Op::send_backward:
      transfers_.send(neighbor_stage(one, -1), std::exchange(sending_back_.at(key(one)), {}));
      sending_back_.erase(key(one));
      return;
    case Op::backward_weight: {
      const at::NoGradGuard no_grad; // as in the backward pass that put them off
      for (const auto& add : std::exchange(weights_[key(one)], {})) {
        add();
      }
      return;
    }
    }
  }

  Pass& pass(const Instruction& one) {
    auto& slot = running_[key(one)];
    if (slot == nullptr) {
      auto& shared = shared_[one.microbatch]; // other chunks may have it on the device
      auto microbatch = shared.lock();
      if (microbatch == nullptr) {
        shared = microbatch = std::make_shared<Microbatch>(
            passes_, microbatches_[static_cast<size_t>(one.microbatch)]
        );
      }
      slot = std::make_unique<Pass>(passes_, std::move(microbatch), mode(one));
    }
    return *slot;
  }

  [[nodiscard]] StepMode mode(const Instruction& one) {
    StepMode mode{
        .training = options_.dropout,
        .checking = passes_.checking,
        .seed = options_.seed,
        .microbatch = one.microbatch,
        .target = passes_.target.value_or(passes_.device.type()),
        .imbalance = passes_.imbalance,
        .weight_queue = split_.contains(key(one)) ? &weights_[key(one)] : nullptr};
    if (train_) {
      mode.loss_scale = options_.loss_scale;
      mode.loss_count = [this](const std::string& over) { return counts_.of(over); };
    }
    return mode;
  }

  [[nodiscard]] at::Tensor room(const Passed& passed) const {
    return at::empty(passed.size, at::TensorOptions().device(passes_.device).dtype(passed.dtype));
  }

  void receive_input(const Instruction& one) {
    Pass& now = pass(one);
    std::vector<at::Tensor> rooms;
    for (const auto& passed : passes_.model.input(one.chunk, now.microbatch->batch)) {
      rooms.push_back(room(passed));
    }
    now.input_arrival = transfers_.receive(neighbor_stage(one, -1), rooms);
  }

  void receive_gradients(const Instruction& one) {
    Pass& now = pass(one);
    std::vector<at::Tensor> rooms;
    for (const auto& passed : passes_.model.output(one.chunk, now.microbatch->batch)) {
      if (passed.differentiable) {
        rooms.push_back(room(passed));
      }
    }
    now.gradient_arrival = transfers_.receive(neighbor_stage(one, 1), rooms);
  }

  void forward(const Instruction& one) {
    Pass& now = pass(one);
    const auto& model = passes_.model;
    auto arrived = transfers_.wait(std::exchange(now.input_arrival, {}));
    size_t i = 0;
    for (const auto& passed : model.input(one.chunk, now.microbatch->batch)) {
      at::Tensor value = std::move(arrived.at(i++));
      value.set_requires_grad(train_ && passed.differentiable);
      now.input.set(passed.name, std::move(value), passed.dims);
    }
    const State output = model.forward(one.chunk, now.input, now.context);
    const auto& handed_on = model.output(one.chunk, now.microbatch->batch);
    if (handed_on.empty()) {
      require_losses(now.context);
    }
    sums_.add(now.context.losses(), counts_);
    if (train_) {
      const at::Tensor total = total_loss(now.context);
      if (total.defined() && total.requires_grad()) {
        now.loss = torch::autograd::impl::gradient_edge(total);
        now.loss_gradient = at::ones_like(total);
      }
    }
    (void)now.context.take_losses();
    for (const auto& passed : handed_on) {
      const at::Tensor& value = output[passed.name].value;
      MH_ASSERT(
          value.sizes() == at::IntArrayRef(passed.size) && value.scalar_type() == passed.dtype,
          "the state's `" + passed.name + "` is " + c10::str(value.sizes()) + ", but by its " +
              "dimensions " + c10::str(at::IntArrayRef(passed.size))
      );
      now.to_send.push_back(value.detach().contiguous());
      if (train_ && passed.differentiable) {
        now.roots.push_back(
            value.requires_grad() ? torch::autograd::impl::gradient_edge(value)
                                  : torch::autograd::Edge()
        );
      }
    }
    Pass* next = neighbor_pass(one, 1);
    if (next != nullptr) {
      next->input_arrival = from_here(std::exchange(now.to_send, {}));
    }
    if (next != nullptr || handed_on.empty()) {
      end_if_forward_only(one);
    }
  }

  void end_if_forward_only(const Instruction& one) {
    if (!train_) {
      running_.erase(key(one));
    }
  }

  void backward(const Instruction& one) {
    const auto now = std::move(running_.at(key(one)));
    running_.erase(key(one));
    Edges edges;
    std::vector<at::Tensor> gradients = transfers_.wait(std::move(now->gradient_arrival));
    std::vector<at::Tensor> entering;
    for (size_t i = 0; i < now->roots.size(); ++i) {
      if (now->roots[i].is_valid()) {
        edges.push_back(now->roots[i]);
        entering.push_back(std::move(gradients.at(i)));
      }
    }
    if (now->loss.is_valid()) {
      edges.push_back(now->loss);
      entering.push_back(now->loss_gradient);
    }
    if (!edges.empty()) {
      in_backward([&] {
        torch::autograd::Engine::get_default_engine().execute(
            edges, entering, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true
        );
      });
    }
    if (passes_.gradients != nullptr) {
      passes_.gradients->backward_done();
    }
    std::vector<at::Tensor> back;
    for (const auto& passed : passes_.model.input(one.chunk, now->microbatch->batch)) {
      if (passed.differentiable) {
        const at::Tensor& value = now->input[passed.name].value;
        const at::Tensor& gradient = value.grad();
        back.push_back(gradient.defined() ? gradient.contiguous() : at::zeros_like(value));
      }
    }
    if (Pass* before = neighbor_pass(one, -1)) {
      before->gradient_arrival = from_here(std::move(back));
    } else {
      sending_back_[key(one)] = std::move(back);
    }
  }

  const Passes& passes_;
  std::span<const Batch> microbatches_;
  ExecuteOptions options_;
  bool train_;
  PipelineSchedule::Args args_;
  int64_t stage_;
  LossCounts counts_;
  LossSums sums_;
  Transfers transfers_;
  std::set<Key> split_; // whose weight gradients are put off
  std::map<int32_t, std::weak_ptr<Microbatch>> shared_;
  std::map<Key, std::unique_ptr<Pass>> running_; // from what comes first to the backward pass
  std::map<Key, std::vector<at::Tensor>> sending_back_;
  std::map<Key, WeightQueue> weights_;
};

} // namespace

LossSums execute(
    const Passes& passes,
    std::span<const Batch> microbatches,
    std::span<const Instruction> instructions,
    const ExecuteOptions& options
) {
  return Executor(passes, microbatches, options).run(instructions);
}

} // namespace mh
