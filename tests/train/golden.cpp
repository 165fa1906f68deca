// Ten steps of megatron-core 0.16.1, from its weights and tokens: losses and gradient norms of
// every step. tests/parity/golden/README.md says how they were made.

#include "core/checkpoint/tensors.hpp"
#include "core/mesh/threads.hpp"
#include "core/recipe/pipeline_layout.hpp"
#include "core/storage/local.hpp"
#include "core/train/stages.hpp"
#include "core/train/step.hpp"
#include "core/train/weights.hpp"
#include "megahost/model.hpp"
#include "megahost/nn/decoder.hpp"
#include "plugins/parallel/pipeline/orders.hpp"
#include "tests/dist/placed.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <numbers>
#include <sstream>
#include <string>

namespace {

constexpr int64_t kHeads = 8;
constexpr int64_t kSteps = 10;

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

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto place = text.find(from);
  return place == std::string::npos ? text : text.replace(place, from.size(), to);
}

/// Megatron's tensors under our names: query, key and value rows are grouped by kv head, gate and
/// up rows follow one another.
std::map<std::string, at::Tensor>
our_names(const std::map<std::string, at::Tensor>& theirs, int64_t kv_heads) {
  std::map<std::string, at::Tensor> ours;
  for (const auto& [their_name, value] : theirs) {
    std::string name = replaced(their_name, "decoder.", "");
    for (const auto& [from, to] :
         {std::pair("embedding.word_embeddings", "embedding.word"),
          std::pair("embedding.position_embeddings", "embedding.position"),
          std::pair("final_layernorm", "head.norm"),
          std::pair("output_layer", "head"),
          std::pair("input_layernorm", "attention_norm"),
          std::pair("pre_mlp_layernorm", "mlp_norm"),
          std::pair("self_attention.linear_proj", "attention.out"),
          std::pair("linear_fc2", "down")}) {
      name = replaced(name, from, to);
    }
    if (name.find("linear_qkv") != std::string::npos) {
      const int64_t queries = kHeads / kv_heads;
      const int64_t width = value.size(0) / (kv_heads * (queries + 2));
      const auto rest = value.sizes().slice(1).vec();
      std::vector<int64_t> grouped{kv_heads, (queries + 2) * width};
      grouped.insert(grouped.end(), rest.begin(), rest.end());
      const auto groups = value.reshape(grouped);
      int64_t row = 0;
      for (const auto& [part, rows] :
           {std::pair("q", queries), std::pair("k", 1L), std::pair("v", 1L)}) {
        std::vector<int64_t> shape{kv_heads * rows * width};
        shape.insert(shape.end(), rest.begin(), rest.end());
        ours[replaced(name, "self_attention.linear_qkv", std::string("attention.") + part)] =
            groups.narrow(1, row, rows * width).reshape(shape);
        row += rows * width;
      }
    } else if (name.find("linear_fc1") != std::string::npos) {
      const bool gated = theirs.contains("output_layer.weight");
      const int64_t rows = value.size(0) / 2;
      if (gated) {
        ours[replaced(name, "linear_fc1", "gate")] = value.narrow(0, 0, rows);
      }
      ours[replaced(name, "linear_fc1", "up")] = gated ? value.narrow(0, rows, rows) : value;
    } else {
      ours[name] = value;
    }
  }
  return ours;
}

/// A layout of ranks as threads.
struct Ranks {
  mh::MeshShape shape{};
  std::string chunks{}; ///< of the pipeline, "embed+2|2+head"
  int64_t zero = 0;
};

/// Trains as one of the ranks.
void check_ten_steps(
    const std::string& name,
    const mh::DecoderConfig& config,
    const Ranks& ranks,
    const mh::Mesh& mesh
) {
  const std::string folder = std::string(std::getenv("MEGAHOST_SOURCE")) + "/tests/parity/golden/";
  mh::LocalStorage disk;
  auto theirs = mh::read_tensors(disk, folder + name + ".safetensors");
  const auto tokens = theirs.at("tokens");
  theirs.erase("tokens");

  const mh::Rules rules = mh::rules_of(/*sequence=*/true);
  const int64_t data_ranks = ranks.shape.dp;
  const mh::Decoder decoder(config, {.vocab = 256, .seq_length = 32});
  std::vector<mh::ModelChunk> chunks;
  std::unique_ptr<mh::Pipeline> pipeline;
  if (!ranks.chunks.empty()) {
    chunks = mh::chunks_of(mh::parse_layout(ranks.chunks).value());
    pipeline = std::make_unique<mh::Pipeline>(
        [](const mh::PipelineSchedule::Args& args) { return std::make_unique<OneByOne>(args); },
        ranks.shape.pp,
        static_cast<int64_t>(chunks.size()) / ranks.shape.pp
    );
  }
  mh::Model model(
      decoder,
      {.mesh = &mesh, .rules = &rules, .seq = 32, .microbatch = data_ranks, .chunks = chunks}
  );
  auto& parameters = model.parameters();
  size_t loaded = 0;
  {
    const at::NoGradGuard no_grad;
    for (const auto& [our_name, value] : our_names(theirs, config.kv_heads.value_or(kHeads))) {
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
  mh::Weights weights(parameters, gradients.owned(), adamw, {.weight_decay = 0.01});
  REQUIRE((weights.stored().size() == 3 * loaded || ranks.zero > 0)); // else some are others'

  std::ifstream printed(folder + name + ".txt");
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
    CHECK(result.losses.at(0).value == doctest::Approx(loss).epsilon(1e-5).scale(0));
    CHECK(result.gradient_norm == doctest::Approx(norm).epsilon(1e-5).scale(0));
  }
}

void check_layouts(const std::string& name, const mh::DecoderConfig& config) {
  for (const auto& ranks :
       {Ranks{},
        Ranks{{.tp = 2}}, // with sequence
        Ranks{{.dp = 2}, "", /*zero=*/1},
        Ranks{{.pp = 2}, "embed+2|2+head"},
        Ranks{{.pp = 2}, "embed+1|1|1|1+head"}}) { // virtual 2
    CAPTURE(ranks.chunks);
    CAPTURE(ranks.shape.tp);
    CAPTURE(ranks.zero);
    mh::run_ranks(ranks.shape, [&](const mh::Mesh& mesh) {
      check_ten_steps(name, config, ranks, mesh);
    });
  }
}

} // namespace

TEST_CASE("ten steps of Megatron's GPT, on one rank and under four layouts") {
  mh::DecoderConfig config;
  config.layers = 4;
  config.hidden = 64;
  config.heads = kHeads;
  config.activation = "gelu";
  check_layouts("gpt", config);
}

TEST_CASE("ten steps of Megatron's Llama, on one rank and under four layouts") {
  mh::DecoderConfig config;
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
  check_layouts("llama", config);
}
