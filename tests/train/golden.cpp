// Ten steps of megatron-core 0.16.1, from its weights and tokens: losses and gradient norms of
// every step. tests/parity/golden/README.md says how they were made.

#include "core/checkpoint/tensors.hpp"
#include "core/mesh/threads.hpp"
#include "core/step/stages.hpp"
#include "core/step/step.hpp"
#include "core/step/weights.hpp"
#include "megahost/model.hpp"
#include "megahost/nn/decoder.hpp"
#include "megahost/nn/experts.hpp"
#include "megahost/pipeline_layout.hpp"
#include "plugins/models/moe/config.hpp"
#include "plugins/parallel/expert/dispatch.hpp"
#include "plugins/parallel/pipeline/orders.hpp"
#include "tests/dist/placed.hpp"
#include "tests/train/megatron_weights.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <numbers>
#include <sstream>
#include <string>

namespace {

using namespace megatron;

class AdamW : public mh::Optimizer {
public:
  [[nodiscard]] std::vector<mh::StateSpec> state() const override { return {{"m"}, {"v"}}; }

  [[nodiscard]] bool finishes() const override { return true; }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override {
    mh::update_fused(
        {.kind = mh::UpdateRule::Kind::adam, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
        items,
        update
    );
  }
};

class OneByOne : public mh::PipelineSchedule {
public:
  explicit OneByOne(const Args& args)
      : lists_(mh::with_transfers(args, mh::pipeline::one_forward_one_backward(args).passes)) {}

  [[nodiscard]] std::vector<mh::Instruction> instructions(int64_t stage) const override {
    return lists_[static_cast<size_t>(stage)];
  }

private:
  mh::InstructionLists lists_;
};

/// Blocks with the plugin's experts.
class Mixture : public mh::Decoder {
public:
  Mixture(const MoeConfig& config, const Args& args)
      : Decoder(config, args)
      , moe_(config) {}

protected:
  [[nodiscard]] std::unique_ptr<mh::FeedForwardPart>
  feed_forward(int64_t, mh::Builder& builder) const override {
    return std::make_unique<mh::MixtureOfExperts>(builder, moe_.mixture(feed_forward_spec()));
  }

private:
  MoeConfig moe_;
};

/// A layout of ranks as threads.
struct GoldenLayout {
  mh::MeshShape shape{};
  std::string chunks{}; ///< chunks of the pipeline, "embed+2|2+head"
  int64_t zero = 0;
};

std::string golden_file(const std::string& name) {
  return std::string(std::getenv("MEGAHOST_SOURCE")) + "/tests/parity/golden/" + name;
}

Tensors read_golden(const std::string& name) {
  return mh::read_tensors(mh::local_storage(), golden_file(name + ".safetensors"));
}

struct Golden {
  std::string name;
  Tensors tensors; ///< weights under Megatron's names, and tokens
  int64_t kv_heads;
  const mh::Decoder& decoder;
};

/// Trains as one of the ranks.
void check_ten_steps(const Golden& golden, const GoldenLayout& ranks, const mh::Mesh& mesh) {
  Tensors theirs = golden.tensors;
  const auto tokens = theirs.at("tokens");
  theirs.erase("tokens");

  mh::Rules rules = mh::rules_of(/*sequence=*/true);
  rules.features.push_back({mh::axis::expert, mh::MeshAxis::ep});
  rules.features.push_back({mh::axis::expert_mlp, mh::MeshAxis::etp});
  rules.experts = expert_parallel::make_all_to_all();
  const int64_t data_ranks = ranks.shape.dp;
  std::vector<mh::ModelChunk> chunks;
  std::unique_ptr<mh::Pipeline> pipeline;
  if (!ranks.chunks.empty()) {
    const auto written = mh::parse_layout(ranks.chunks).value();
    const mh::PipelineSchedule::Args sizes{
        .stages = ranks.shape.pp,
        .virtual_stages = static_cast<int64_t>(written.size()) / ranks.shape.pp,
        .microbatches = ranks.shape.pp};
    pipeline = std::make_unique<mh::Pipeline>(
        [](const mh::PipelineSchedule::Args& args) { return std::make_unique<OneByOne>(args); },
        sizes
    );
    chunks = mh::chunks_of(written, pipeline->args());
  }
  mh::Model model(
      golden.decoder,
      {.mesh = &mesh, .rules = &rules, .seq = 32, .microbatch = data_ranks, .chunks = chunks}
  );
  auto& parameters = model.parameters();
  size_t loaded = 0;
  {
    const at::NoGradGuard no_grad;
    for (const auto& [our_name, value] : our_names(stacked(theirs), golden.kv_heads)) {
      auto* parameter = parameters.find(our_name);
      REQUIRE_MESSAGE((parameter != nullptr || pipeline != nullptr), our_name);
      if (parameter == nullptr) { // it lies on another stage
        continue;
      }
      for (const auto& piece : parameter->pieces) {
        if (piece.name == our_name) {
          parameter->view(parameter->value, piece).copy_(mh::slice_of(value, piece));
          ++loaded;
        }
      }
    }
  }
  const AdamW adamw;
  mh::Gradients gradients(parameters, mesh, {.zero = ranks.zero});
  mh::Weights weights(gradients, adamw, {.weight_decay = 0.01});
  REQUIRE((weights.stored().size() == 3 * loaded || ranks.zero > 0)); // else some are others'

  std::ifstream printed(golden_file(golden.name + ".txt"));
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<mh::Batch> batches;
    for (int64_t first = 0; first < 8; first += data_ranks) {
      const int64_t sample = first + mesh.coordinate(mh::MeshAxis::dp);
      const auto ids = tokens[step][sample].unsqueeze(1);
      mh::Batch batch;
      batch.seq = 32;
      batch.batch = data_ranks;
      batch.samples = {8 * step + sample};
      batch.arrays["tokens"] = ids.narrow(0, 0, 32);
      batch.arrays["labels"] = ids.narrow(0, 1, 32);
      batch.arrays["loss_mask"] = at::ones({32, 1});
      batches.push_back(batch);
    }
    const auto n = static_cast<double>(step);
    const double lr =
        n <= 2 ? 1e-3 * n / 2 : 1e-4 + 9e-4 * 0.5 * (std::cos(std::numbers::pi * (n - 2) / 8) + 1);
    const auto result = mh::train_step(
        {mesh, rules, model, at::kCPU, /*checking=*/false, pipeline.get(), &gradients},
        weights,
        adamw,
        batches,
        {.seed = 1, .clip = 1.0, .update = {.step = step + 1, .lr = lr}}
    );
    std::string line;
    REQUIRE(std::getline(printed, line));
    std::istringstream words(line.substr(line.find("loss ") + 5));
    double loss = 0;
    double norm = 0;
    std::string word;
    words >> loss >> word >> word >> norm;
    CAPTURE(line);
    const auto check_loss = [&](const std::string& name, double expected) {
      CAPTURE(name);
      const auto found =
          std::find_if(result.losses.begin(), result.losses.end(), [&](const auto& value) {
            return value.name == name;
          });
      REQUIRE(found != result.losses.end());
      CHECK(found->value == doctest::Approx(expected).epsilon(1e-5).scale(0));
    };
    check_loss("lm loss", loss);
    for (const std::string name : {"z loss", "load balancing loss"}) {
      if (const auto place = line.find(name); place != std::string::npos) {
        check_loss(name, std::stod(line.substr(place + name.size())));
      }
    }
    CHECK(result.gradient_norm == doctest::Approx(norm).epsilon(1e-5).scale(0));
  }
}

void check_layouts(const Golden& golden, const std::vector<GoldenLayout>& layouts) {
  for (const auto& ranks : layouts) {
    CAPTURE(ranks.chunks);
    CAPTURE(ranks.shape.tp);
    CAPTURE(ranks.zero);
    mh::run_ranks(ranks.shape, [&](const mh::Mesh& mesh) { check_ten_steps(golden, ranks, mesh); });
  }
}

std::vector<GoldenLayout> dense_layouts() {
  return {
      GoldenLayout{},
      GoldenLayout{{.tp = 2}}, // with sequence
      GoldenLayout{{.dp = 2}, "", /*zero=*/1},
      GoldenLayout{{.pp = 2}, "embed+2|2+head"},
      GoldenLayout{{.pp = 2}, "embed+1|1|1|1+head"}}; // virtual 2
}

/// The fields that Megatron's llama and its mixture have in common; the rest is the plugins'
/// defaults.
template <class Config>
Config llama_config() {
  Config config;
  config.layers = 4;
  config.hidden = 64;
  config.heads = kHeads;
  config.kv_heads = 4;
  config.ffn_hidden = 160;
  config.norm = "rmsnorm";
  config.activation = "swiglu";
  config.positions = "rope";
  config.bias = false;
  config.tied = false;
  return config;
}

} // namespace

TEST_CASE("ten steps of Megatron's GPT, on one rank and under four layouts") {
  mh::DecoderConfig config;
  config.layers = 4;
  config.hidden = 64;
  config.heads = kHeads;
  config.activation = "gelu";
  const mh::Decoder decoder(config, {.vocab = 256, .seq_length = 32});
  check_layouts({"gpt", read_golden("gpt"), kHeads, decoder}, dense_layouts());
}

TEST_CASE("ten steps of Megatron's Llama, on one rank and under four layouts") {
  const auto config = llama_config<mh::DecoderConfig>();
  const mh::Decoder decoder(config, {.vocab = 256, .seq_length = 32});
  check_layouts({"llama", read_golden("llama"), 4, decoder}, dense_layouts());
}

TEST_CASE("ten steps of Megatron's mixture of experts, on one rank and under four layouts") {
  const Tensors dense = seeded(0), read = read_golden("llama");
  REQUIRE(dense.size() == read.size());
  for (const auto& [name, tensor] : read) {
    CAPTURE(name);
    REQUIRE(at::equal(tensor, dense.at(name)));
  }
  auto config = llama_config<MoeConfig>();
  config.experts = 4; // two of a token, and a balance weight of 1e-2
  config.z_weight = 1e-3;
  const Mixture decoder(config, {.vocab = 256, .seq_length = 32});
  check_layouts(
      {"moe", seeded(4), 4, decoder},
      {GoldenLayout{},
       GoldenLayout{{.tp = 2, .ep = 2}},
       GoldenLayout{{.dp = 2}, "", /*zero=*/1},
       GoldenLayout{{.dp = 2, .ep = 2}},
       GoldenLayout{{.pp = 2}, "embed+2|2+head"}}
  );
}

TEST_CASE("ten steps of Megatron's GPT with experts, biases in all of its products") {
  MoeConfig config;
  config.layers = 4;
  config.hidden = 64;
  config.heads = kHeads;
  config.norm = "layernorm";
  config.activation = "gelu";
  config.positions = "learned";
  config.bias = true;
  config.tied = true;
  config.experts = 4;
  config.z_weight = 1e-3;
  const Mixture decoder(config, {.vocab = 256, .seq_length = 32});
  check_layouts(
      {"gpt_moe", seeded(4, /*gpt=*/true), kHeads, decoder},
      {GoldenLayout{},
       GoldenLayout{{.tp = 2, .ep = 2}},
       GoldenLayout{{.tp = 2, .etp = 2}},
       GoldenLayout{{.dp = 2, .ep = 2}, "", /*zero=*/1},
       GoldenLayout{{.pp = 2}, "embed+2|2+head"}}
  );
}
