// A checkpoint that was written under one layout is read under every other, of up to eight ranks:
// parameters, masters and optimizer state have every bit, and data go on at the same sample.

#include "core/checkpoint/native.hpp"
#include "core/formats/manifest.hpp"
#include "core/mesh/agree.hpp"
#include "core/mesh/threads.hpp"
#include "core/step/batches.hpp"
#include "core/step/stages.hpp"
#include "core/step/weights.hpp"
#include "core/storage/memory_storage.hpp"
#include "core/train/checkpointing.hpp"
#include "megahost/model.hpp"
#include "megahost/nn/decoder.hpp"
#include "megahost/pipeline_layout.hpp"
#include "megahost/random.hpp"
#include "tests/dist/placed.hpp"
#include "tests/train/tiny.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace checkpoints_tests {

using namespace mh;

namespace {

struct TestLayout {
  const char* name;
  MeshShape shape{};
  std::string chunks{}; // chunks of the pipeline
  int64_t zero = 0;
  Unit unit = Unit::element;
};

const std::vector<TestLayout> kLayouts{
    {"one rank"},
    {"tensor 2, pipeline 2", {.pp = 2, .tp = 2}, "embed+2|2+head"},
    {"tensor 4, two of which share a key head", {.tp = 4}},
    {"pipeline 2", {.pp = 2}, "embed+3|1+head"},
    {"pipeline 2 of virtual 2", {.pp = 2}, "embed+1|1|1|1+head"},
    {"pipeline 4, data 2", {.pp = 4, .dp = 2}, "embed+1|1|1|1+head"},
    {"context 2, tensor 2", {.cp = 2, .tp = 2}},
    {"data 4, zero 1", {.dp = 4}, "", 1},
    {"data 4, zero 2", {.dp = 4}, "", 2},
    {"data 8, zero 3", {.dp = 8}, "", 3},
    {"tensor 2, pipeline 2, data 2, zero 1", {.pp = 2, .dp = 2, .tp = 2}, "embed+2|2+head", 1},
    {"tensor 2, context 2, data 2, zero 1 by whole matrices",
     {.dp = 2, .cp = 2, .tp = 2},
     "",
     1,
     Unit::matrix},
};

/// Two states like the parameter, and one of a shape of its own.
class ThreeStates : public Optimizer {
public:
  [[nodiscard]] std::vector<StateSpec> state() const override {
    return {{"m"}, {"v"}, {"rows", at::kFloat, {7}}};
  }

  void update(std::span<UpdateItem>, const Update&) const override {}
};

DecoderConfig config() {
  DecoderConfig c;
  c.layers = 4;
  c.hidden = 24;
  c.heads = 4;
  c.kv_heads = 2;
  c.ffn_hidden = 40;
  c.norm = "rmsnorm";
  c.activation = "swiglu";
  c.qkv_bias = true;
  c.tied = true;
  return c;
}

/// The tensors of a run that a rank holds: bf16 weights, float32 masters, three states of each.
class Rank {
public:
  Rank(const TestLayout& layout, const Mesh& mesh, Storage& storage = local_storage())
      : mesh_(mesh)
      , format_({}, {.storage = storage})
      , rules_(rules_of(/*sequence=*/true))
      , decoder_(config(), {.vocab = 50, .seq_length = 8})
      , model_(
            decoder_,
            {.mesh = &mesh,
             .rules = &rules_,
             .dtype = at::kBFloat16,
             .seq = 8,
             .microbatch = layout.shape.dp,
             .vocab_multiple = 4,
             .chunks = layout.chunks.empty() ? std::vector<ModelChunk>()
                                             : chunks_of(parse_layout(layout.chunks).value(), {})}
        )
      , gradients_(model_.parameters(), mesh, {.zero = layout.zero, .unit = layout.unit})
      , weights_(gradients_, optimizer_) {}

  void save(const std::filesystem::path& run, const Progress& progress) {
    for (const auto& stored : weights_.stored()) {
      const at::NoGradGuard no_grad;
      stored.data.copy_(truth(stored.name, *stored.piece));
    }
    std::vector<std::string> notes;
    save_checkpoint(
        format_, run, progress, weights_, /*retention=*/{}, notes, ranks_of(mesh_.all())
    );
    CHECK(notes.empty());
  }

  /// `passed_over`: newer checkpoints that are damaged.
  Progress load(const std::filesystem::path& run, size_t passed_over = 0) {
    const at::NoGradGuard no_grad;
    for (const auto& stored : weights_.stored()) {
      stored.data.fill_(7);
    }
    std::vector<std::string> notes;
    const auto progress = load_checkpoint(format_, run, weights_, notes, ranks_of(mesh_.all()));
    gradients_.share_parameters();
    gradients_.wait_for_all();
    CHECK(notes.size() == passed_over);
    REQUIRE(progress.has_value());
    return *progress;
  }

  void check() const {
    for (const auto& stored : weights_.stored()) {
      CHECK_MESSAGE(at::equal(stored.data, truth(stored.name, *stored.piece)), stored.name);
    }
    for (const auto& parameter : model_.parameters().all()) {
      for (const auto& piece : parameter.pieces) {
        const at::Tensor value = parameter.view(parameter.value.detach(), piece);
        CHECK_MESSAGE(at::equal(value, truth(piece.name, piece).to(at::kBFloat16)), piece.name);
      }
    }
  }

  /// The samples that this rank sees in the step after so many.
  [[nodiscard]] std::vector<int64_t> samples_after(int64_t consumed) const {
    const tiny::Numbers corpus;
    const int64_t data = mesh_.size(MeshAxis::dp);
    std::vector<int64_t> samples;
    for (const auto& batch : load_batches(
             corpus,
             Split::train,
             consumed,
             {.seq = tiny::kSeq,
             .micro = 1,
             .microbatches = 8 / data,
             .data_ranks = data,
             .data_rank = mesh_.coordinate(MeshAxis::dp)}
         )) {
      samples.insert(samples.end(), batch.samples.begin(), batch.samples.end());
    }
    return samples;
  }

private:
  /// Values that depend on name and place in the global tensor only.
  static at::Tensor truth(const std::string& name, const Piece& piece) {
    const at::Tensor slice = at::full(piece.shape, 0, at::kFloat);
    fill_normal(slice, random_key(5, name), 1, piece.global_shape, piece.offset);
    return slice;
  }

  const Mesh& mesh_;
  NativeFormat format_;
  Rules rules_;
  Decoder decoder_;
  Model model_;
  Gradients gradients_;
  ThreeStates optimizer_;
  Weights weights_;
};

} // namespace

TEST_CASE("checkpoints of twelve layouts, each read under all twelve") {
  std::string folder = std::filesystem::temp_directory_path() / "megahost-layouts-XXXXXX";
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const auto run = [&](size_t i) { return std::filesystem::path(folder) / std::to_string(i); };
  for (size_t i = 0; i < kLayouts.size(); ++i) {
    CAPTURE(kLayouts[i].name);
    Progress progress;
    progress.step = 3 + static_cast<int64_t>(i);
    progress.samples = 8 * progress.step;
    std::filesystem::create_directory(run(i));
    run_ranks(kLayouts[i].shape, [&](const Mesh& mesh) {
      Rank(kLayouts[i], mesh).save(run(i), progress);
    });
  }
  for (const auto& layout : kLayouts) {
    std::mutex mutex;
    std::vector<std::set<int64_t>> samples(kLayouts.size());
    run_ranks(layout.shape, [&](const Mesh& mesh) {
      Rank rank(layout, mesh);
      for (size_t i = 0; i < kLayouts.size(); ++i) {
        const Progress progress = rank.load(run(i));
        const std::string pair = std::string(kLayouts[i].name) + " -> " + layout.name;
        CAPTURE(pair);
        rank.check();
        CHECK(progress.step == 3 + static_cast<int64_t>(i));
        const auto own = rank.samples_after(progress.samples);
        const std::scoped_lock lock(mutex);
        samples[i].insert(own.begin(), own.end());
      }
    });
    for (size_t i = 0; i < kLayouts.size(); ++i) {
      const auto first = 8 * (3 + static_cast<int64_t>(i));
      REQUIRE(samples[i].size() == 8);
      CHECK(*samples[i].begin() == first);
      CHECK(*samples[i].rbegin() == first + 7);
    }
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("ranks of one machine read each byte of a checkpoint once between them") {
  const TestLayout data{"data 4", {.dp = 4}};
  const std::vector<const TestLayout*> layouts{
      &kLayouts[0], &kLayouts[1], &kLayouts[2], &kLayouts[6], &kLayouts[8], &data};
  for (const auto* saved : layouts) {
    MemoryStorage store;
    Progress progress;
    progress.step = 5;
    run_ranks(saved->shape, [&](const Mesh& mesh) {
      Rank(*saved, mesh, store).save("run", progress);
    });
    uint64_t tensors = 0, manifest = 0;
    for (const auto& [name, text] : store.objects()) {
      const bool shard = name.ends_with(".safetensors");
      tensors += shard ? text.size() + 8 : 0; // the header's length is in the header, too
      manifest += name.ends_with(kManifestName) ? text.size() : 0;
    }
    for (const auto* loaded : layouts) {
      const std::string pair = std::string(saved->name) + " -> " + loaded->name;
      CAPTURE(pair);
      store.bytes_read = 0;
      run_ranks(loaded->shape, [&](const Mesh& mesh) {
        Rank rank(*loaded, mesh, store);
        CHECK(rank.load("run").step == 5);
        rank.check();
      });
      const auto ranks = static_cast<uint64_t>(loaded->shape.world());
      CHECK(store.bytes_read == tensors + ranks * manifest);
    }
  }
}

TEST_CASE("a checkpoint that one rank finds damaged is passed over by all of a machine") {
  const TestLayout data{"data 2, tensor 2", {.dp = 2, .tp = 2}};
  MemoryStorage store;
  for (const int64_t step : {4, 5}) {
    Progress progress;
    progress.step = step;
    run_ranks(data.shape, [&](const Mesh& mesh) { Rank(data, mesh, store).save("run", progress); });
  }
  std::string damaged;
  for (const auto& [name, text] : store.objects()) {
    if (name.find("step-000000000005/") != std::string::npos && name.ends_with(".safetensors")) {
      damaged = name;
    }
  }
  REQUIRE_FALSE(damaged.empty());
  store.contents(damaged).back() ^= 1;
  run_ranks(data.shape, [&](const Mesh& mesh) {
    Rank rank(data, mesh, store);
    CHECK(rank.load("run", /*passed_over=*/1).step == 4);
    rank.check();
  });
}

} // namespace checkpoints_tests
