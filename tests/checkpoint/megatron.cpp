// Megatron-LM's names and its torch_dist; what megatron-core itself says of them is in
// tests/parity/torch_dist.py.

#include "core/foreign/megatron.hpp"

#include "core/base/printable.hpp"
#include "core/foreign/dcp.hpp"
#include "core/foreign/megatron_names.hpp"
#include "core/foreign/megatron_parts.hpp"
#include "core/formats/torch_file.hpp"
#include "core/storage/memory_storage.hpp"
#include "samples.hpp"
#include "tests/formats/refusal.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <map>

using mh::MemoryStorage;
using mh::Path;
using namespace mh::test;

namespace {

using Tensors = std::map<std::string, at::Tensor>;

mh::OutlinedTensors outlined_tensors(const Tensors& tensors) {
  mh::OutlinedTensors outlined;
  for (const auto& [name, value] : tensors) {
    outlined.outlines.push_back({name, value.scalar_type(), value.sizes().vec()});
  }
  outlined.value = [tensors](const std::string& name) { return tensors.at(name); };
  return outlined;
}

/// A model of so many layers by the names of its state_dict, the last one with experts.
Tensors small_model(bool experts) {
  Tensors all{
      {"embedding.word_embeddings.weight", counting({8, 4}, 1)},
      {"decoder.final_layernorm.weight", counting({4}, 50, at::kBFloat16)}};
  for (int64_t i = 0; i < 3; ++i) {
    const std::string layer = "decoder.layers." + std::to_string(i) + ".";
    const auto start = static_cast<double>(100 * (i + 1));
    all[layer + "input_layernorm.weight"] = counting({4}, start);
    all[layer + "self_attention.linear_qkv.weight"] = counting({12, 4}, start + 10);
    all[layer + "pre_mlp_layernorm.weight"] = counting({4}, start + 60);
    const bool is_mixture = experts;
    for (int64_t e = 0; e < (is_mixture ? 2 : 1); ++e) {
      const std::string mlp =
          layer + (is_mixture ? "mlp.experts.local_experts." + std::to_string(e) + "." : "mlp.");
      all[mlp + "linear_fc1.weight"] = counting({6, 4}, start + 70 + static_cast<double>(e));
    }
  }
  return all;
}

void check_equal(mh::CheckpointReader& saved, const Tensors& expected) {
  REQUIRE(saved.tensors().size() == expected.size());
  for (const auto& [name, value] : expected) {
    CAPTURE(name);
    CHECK(whole_tensor(saved, name).equal(value));
  }
}

std::vector<std::string> stored_names(MemoryStorage& store, const Path& folder) {
  std::vector<std::string> names;
  const mh::DcpFolder stored(store, folder);
  for (const auto& tensor : stored.tensors()) {
    names.push_back(tensor.name + mh::shape_text(tensor.shape));
  }
  return names;
}

} // namespace

TEST_CASE("names of torch_dist become those of a state_dict") {
  const auto text = [](const char* stored) { return mh::megatron_name(stored).text; };
  CHECK(text("embedding.word_embeddings.weight") == "embedding.word_embeddings.weight");
  CHECK(text("decoder.final_layernorm.bias") == "decoder.final_layernorm.bias");
  CHECK(
      text("decoder.layers.self_attention.linear_qkv.layer_norm_weight") ==
      "decoder.layers.{}.input_layernorm.weight"
  );
  CHECK(
      text("decoder.layers.7.mlp.linear_fc1.layer_norm_bias") ==
      "decoder.layers.7.pre_mlp_layernorm.bias"
  );
  CHECK(
      text("module.decoder.layers.mlp.linear_fc2.weight") ==
      "decoder.layers.{}.mlp.linear_fc2.weight"
  );
  CHECK(
      text("decoder.layers.mlp.experts.experts.linear_fc1.weight") ==
      "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight"
  );
  CHECK(
      text("optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight") ==
      "optimizer.exp_avg.decoder.layers.{}.mlp.linear_fc2.weight"
  );
  CHECK(
      text("optimizer.state.fp32_param.output_layer.weight") ==
      "optimizer.master.output_layer.weight"
  );
  const auto half = mh::megatron_name("decoder.layers.1.mlp.experts.experts.3.linear_fc1.weight_v");
  CHECK(half.text == "decoder.layers.1.mlp.experts.local_experts.3.linear_fc1.weight");
  CHECK(half.half == 1);
  CHECK(
      mh::megatron_name("decoder.layers.mlp.experts.experts.linear_fc2.weight").at({4, 5}) ==
      "decoder.layers.4.mlp.experts.local_experts.5.linear_fc2.weight"
  );
  // A name with a hole of its own is no layer's.
  CHECK(mh::megatron_name("decoder.layers.{}.x").text == "decoder.layers.{}.x");
}

TEST_CASE("names from before megatron-core become those of a state_dict") {
  const auto now = mh::modern_megatron_name;
  CHECK(
      now("language_model.embedding.word_embeddings.weight") == "embedding.word_embeddings.weight"
  );
  CHECK(
      now("language_model.transformer.layers.3.attention.query_key_value.bias") ==
      "decoder.layers.3.self_attention.linear_qkv.bias"
  );
  CHECK(
      now("language_model.encoder.layers.11.self_attention.dense.weight") ==
      "decoder.layers.11.self_attention.linear_proj.weight"
  );
  CHECK(
      now("language_model.encoder.layers.0.mlp.dense_h_to_4h.weight") ==
      "decoder.layers.0.mlp.linear_fc1.weight"
  );
  CHECK(
      now("language_model.encoder.layers.0.post_attention_layernorm.weight") ==
      "decoder.layers.0.pre_mlp_layernorm.weight"
  );
  CHECK(now("language_model.encoder.final_layernorm.weight") == "decoder.final_layernorm.weight");
  CHECK(now("decoder.layers.0.mlp.linear_fc2.weight") == "decoder.layers.0.mlp.linear_fc2.weight");
  CHECK(now("encoder.layers.0.mlp.linear_fc2.weight") == "encoder.layers.0.mlp.linear_fc2.weight");
}

TEST_CASE("each stack of an encoder-decoder is stacked, and some tensors are there twice") {
  MemoryStorage store;
  Tensors model{
      {"embedding.position_embeddings.weight", counting({8, 4}, 1)},
      {"output_layer.bias", counting({8}, 40)}};
  for (int64_t i = 0; i < 5; ++i) {
    const std::string layer = i < 3 ? "encoder.layers." + std::to_string(i) + "."
                                    : "decoder.layers." + std::to_string(i - 3) + ".";
    const auto start = static_cast<double>(100 * (i + 1));
    model[layer + "self_attention.linear_qkv.weight"] = counting({12, 4}, start);
    model[layer + "input_layernorm.weight"] = counting({4}, start + 50);
    if (i >= 3) {
      model[layer + "pre_cross_attn_layernorm.weight"] = counting({4}, start + 60);
      model[layer + "cross_attention.linear_q.weight"] = counting({4, 4}, start + 70);
    }
  }
  (void)mh::write_torch_dist(store, "out", 1, outlined_tensors(model));
  CHECK(
      stored_names(store, "out/iter_0000001") ==
      std::vector<std::string>{
          "decoder.layers.cross_attention.linear_q.weight[2, 4, 4]",
          "decoder.layers.pre_cross_attn_layernorm.weight[2, 4]",
          "decoder.layers.self_attention.linear_qkv.layer_norm_weight[2, 4]",
          "decoder.layers.self_attention.linear_qkv.weight[2, 12, 4]",
          "embedding.position_embeddings.weight[8, 4]",
          "encoder.layers.self_attention.linear_qkv.layer_norm_weight[3, 4]",
          "encoder.layers.self_attention.linear_qkv.weight[3, 12, 4]",
          "lm_head.output_layer.bias[8]",
          "output_layer.bias[8]",
          "position_embeddings.weight[8, 4]"}
  );
  check_equal(*mh::open_torch_dist(store, "out/iter_0000001"), model);
  // Its optimizer knows such a tensor by one of both names.
  const auto moment = mh::megatron_name("optimizer.state.exp_avg.position_embeddings.weight");
  CHECK(moment.text == "optimizer.exp_avg.embedding.position_embeddings.weight");
  CHECK(moment.is_second);
  CHECK_FALSE(mh::megatron_name("embedding.position_embeddings.weight").is_second);
}

TEST_CASE("layers of a hybrid have their numbers, and what a mixer joins is there in parts") {
  MemoryStorage store;
  Tensors model{{"decoder.final_norm.weight", counting({4}, 1)}};
  for (int64_t i = 0; i < 2; ++i) { // though they are alike
    const std::string layer = "decoder.layers." + std::to_string(i) + ".";
    const auto start = static_cast<double>(100 * (i + 1));
    model[layer + "norm.weight"] = counting({4}, start);
    model[layer + "mixer.in_proj.weight.z"] = counting({6, 4}, start + 10);
    model[layer + "mixer.in_proj.weight.dt"] = counting({2, 4}, start + 40);
    model[layer + "mixer.norm.weight"] = counting({6}, start + 50);
  }
  (void)mh::write_torch_dist(store, "out", 1, outlined_tensors(model));
  CHECK(
      stored_names(store, "out/iter_0000001") ==
      std::vector<std::string>{
          "decoder.final_norm.weight[4]",
          "decoder.layers.0.mixer.in_proj.layer_norm_weight[4]",
          "decoder.layers.0.mixer.in_proj.weight.dt[2, 4]",
          "decoder.layers.0.mixer.in_proj.weight.z[6, 4]",
          "decoder.layers.0.mixer.norm.weight[6]",
          "decoder.layers.1.mixer.in_proj.layer_norm_weight[4]",
          "decoder.layers.1.mixer.in_proj.weight.dt[2, 4]",
          "decoder.layers.1.mixer.in_proj.weight.z[6, 4]",
          "decoder.layers.1.mixer.norm.weight[6]"}
  );
  check_equal(*mh::open_torch_dist(store, "out/iter_0000001"), model);

  // Among 24 rows z and x have 6 each and dt has 2; b and c share the others.
  const auto parts = mh::joined_parts("mixer.in_proj.weight", 24, 6, 2);
  REQUIRE(parts.size() == 5);
  CHECK(parts[2].name == "mixer.in_proj.weight.B");
  CHECK(parts[2].row == 12);
  CHECK(parts[2].rows == 5);
  CHECK(parts[4].row == 22);
  CHECK(mh::joined_parts("mixer.conv1d.bias", 16, 6, 2).back().row == 11);
  CHECK(mh::joined_parts("mixer.in_proj.weight", 23, 6, 2).empty()); // b and c cannot share 9
  CHECK(mh::joined_parts("mixer.in_proj.weight", 14, 6, 2).empty());
  CHECK(mh::joined_parts("mixer.in_proj.weight", 24, int64_t{1} << 62, 2).empty());
  CHECK_FALSE(mh::is_joined("mixer.out_proj.weight"));
}

TEST_CASE("layers are stacked, and read again one by one") {
  MemoryStorage store;
  const Tensors model = small_model(/*experts=*/false);
  (void)mh::write_torch_dist(store, "out", 20, outlined_tensors(model));
  CHECK(mh::get_text(store, "out/latest_checkpointed_iteration.txt", 100) == "20");
  CHECK(
      stored_names(store, "out/iter_0000020") ==
      std::vector<std::string>{
          "decoder.final_layernorm.weight[4]",
          "decoder.layers.mlp.linear_fc1.layer_norm_weight[3, 4]",
          "decoder.layers.mlp.linear_fc1.weight[3, 6, 4]",
          "decoder.layers.self_attention.linear_qkv.layer_norm_weight[3, 4]",
          "decoder.layers.self_attention.linear_qkv.weight[3, 12, 4]",
          "embedding.word_embeddings.weight[8, 4]"}
  );
  const mh::TorchDistFormat format({}, {.storage = store});
  CHECK(format.steps("out") == std::vector<int64_t>{20});
  const auto saved = format.open("out", 20);
  CHECK(saved->names() == mh::TensorNames::megatron);
  CHECK(saved->state().empty());
  CHECK(nlohmann::json::parse(saved->arguments())["iteration"] == 20);
  check_equal(*saved, model);
  // A rank reads its rows of one layer, and no other layer's.
  const mh::Slice rows = part_of(
      whole(
          "decoder.layers.1.mlp.linear_fc1.weight",
          model.at("decoder.layers.1.mlp.linear_fc1.weight")
      ),
      0,
      1,
      3
  );
  const auto blanks = blank({rows});
  saved->read(blanks);
  CHECK(equal(blanks, {rows}));
  CHECK(saved->verify([](uint64_t) {}).damages.empty());
}

TEST_CASE("experts are stacked within layers, and layers that differ have their numbers") {
  MemoryStorage store;
  const Tensors alike = small_model(/*experts=*/true);
  (void)mh::write_torch_dist(store, "alike", 1, outlined_tensors(alike));
  const auto names = stored_names(store, "alike/iter_0000001");
  CHECK(
      std::count(names.begin(), names.end(), "decoder.layers.pre_mlp_layernorm.weight[3, 4]") == 1
  );
  CHECK(
      std::count(
          names.begin(),
          names.end(),
          "decoder.layers.mlp.experts.experts.linear_fc1.weight[3, 2, 6, 4]"
      ) == 1
  );
  check_equal(*mh::open_torch_dist(store, "alike/iter_0000001"), alike);

  Tensors mixed = alike;
  for (auto& [name, value] : small_model(/*experts=*/false)) {
    if (name.starts_with("decoder.layers.0.mlp.")) {
      mixed[name] = value;
    }
  }
  std::erase_if(mixed, [](const auto& one) {
    return one.first.starts_with("decoder.layers.0.mlp.experts");
  });
  (void)mh::write_torch_dist(store, "mixed", 1, outlined_tensors(mixed));
  const auto apart = stored_names(store, "mixed/iter_0000001");
  CHECK(
      std::count(
          apart.begin(), apart.end(), "decoder.layers.0.mlp.linear_fc1.layer_norm_weight[4]"
      ) == 1
  );
  CHECK(
      std::count(
          apart.begin(),
          apart.end(),
          "decoder.layers.2.mlp.experts.experts.linear_fc1.weight[2, 6, 4]"
      ) == 1
  );
  check_equal(*mh::open_torch_dist(store, "mixed/iter_0000001"), mixed);
}

TEST_CASE("halves of a gated feed-forward and moments have places") {
  MemoryStorage store;
  const at::Tensor gate = counting({3, 4}, 1), up = counting({3, 4}, 40);
  const std::string fc1 = "decoder.layers.0.mlp.linear_fc1.weight";
  (void)mh::write_dcp_tensors(
      store,
      "halves",
      outlined_tensors(
          {{fc1 + "_w", gate},
           {fc1 + "_v", up},
           {"optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight", counting({2, 4, 3}, 7)},
           {"rng_state.x", counting({2}, 1)}}
      ),
      ""
  );
  const auto saved = mh::open_torch_dist(store, "halves");
  CHECK(whole_tensor(*saved, fc1).equal(at::cat({gate, up})));
  CHECK(saved->find(fc1)->is_weight);
  const std::string moment = "optimizer.exp_avg.decoder.layers.1.mlp.linear_fc2.weight";
  CHECK(whole_tensor(*saved, moment).equal(counting({2, 4, 3}, 7)[1]));
  CHECK_FALSE(saved->find(moment)->is_weight);
  CHECK_FALSE(saved->find("rng_state.x")->is_weight);

  (void)mh::write_dcp_tensors(store, "one", outlined_tensors({{fc1 + "_v", up}}), "");
  CHECK(contains(refusal([&] { (void)mh::open_torch_dist(store, "one"); }), fc1));
  (void
  )mh::write_dcp_tensors(store, "two", outlined_tensors({{fc1, gate}, {"module." + fc1, up}}), "");
  CHECK(contains(refusal([&] { (void)mh::open_torch_dist(store, "two"); }), "there are two of"));
}

TEST_CASE("moments and masters have the names of Megatron's optimizers, and the run its arguments"
) {
  MemoryStorage store;
  Tensors all = small_model(/*experts=*/true);
  const std::string norm = "decoder.final_layernorm.weight"; // it is bf16, and has a master
  all["optimizer.exp_avg." + norm] = counting({4}, 5);
  all["optimizer.master." + norm] = counting({4}, 50.125);
  (void)mh::write_torch_dist(
      store,
      "out",
      7,
      outlined_tensors(all),
      {{"args", {{"num_layers", 3}, {"lr", 0.5}, {"bf16", true}, {"name", "x"}, {"none", nullptr}}},
       {"optimizer", {{"0", {{"betas", {0.9, 0.95}}}}, {"1", {{"step", 7}}}}}}
  );
  const auto names = stored_names(store, "out/iter_0000007");
  const auto has = [&names](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const char* name :
       {"optimizer.state.exp_avg.decoder.final_layernorm.weight[4]",
        "optimizer.state.param.decoder.final_layernorm.weight[4]",
        "optimizer.state.fp32_param.decoder.final_layernorm.weight[4]"}) {
    CAPTURE(name);
    CHECK(has(name));
  }
  // A tensor without moments has no master either.
  CHECK_FALSE(has("optimizer.state.param.embedding.word_embeddings.weight[8, 4]"));
  const auto file = mh::get_text(store, "out/iter_0000007/common.pt", 1 << 20);
  const mh::TorchFile common(
      [&file](uint64_t at, std::span<std::byte> into) {
        std::memcpy(into.data(), file.data() + at, into.size());
      },
      file.size(),
      "common.pt"
  );
  CHECK(common.root().get("args")->is_object("argparse.Namespace"));
  const mh::PickleValue& optimizers = *common.root().get("optimizer");
  REQUIRE(optimizers.items.size() == 4);
  CHECK(optimizers.items[2]->integer == 1); // a number, as ChainedOptimizer has it
  CHECK(optimizers.items[1]->get("betas")->items[1]->real == 0.95);
}

TEST_CASE("weights of float32 are their own masters, and are read once") {
  MemoryStorage store;
  Tensors all;
  for (const auto& [name, value] : small_model(/*experts=*/false)) {
    all[name] = value.to(at::kFloat);
    all["optimizer.exp_avg." + name] = counting(value.sizes().vec(), 7000);
    all["optimizer.exp_avg_sq." + name] = counting(value.sizes().vec(), 8000);
  }
  const uint64_t bytes = mh::write_torch_dist(store, "out", 7, outlined_tensors(all));
  CHECK(bytes == outlined_tensors(all).bytes());
  const auto saved = mh::open_torch_dist(store, "out/iter_0000007");
  Tensors expected = all;
  for (const auto& [name, value] : small_model(/*experts=*/false)) {
    expected["optimizer.master." + name] = value.to(at::kFloat);
  }
  check_equal(*saved, expected);
}

TEST_CASE("shapes without layers, or with too many, are refused by name") {
  MemoryStorage store;
  const auto open = [&](const at::Tensor& value) {
    const std::string name = "decoder.layers.mlp.experts.experts.linear_fc1.weight";
    (void)mh::write_dcp_tensors(store, "bad", outlined_tensors({{name, value}}), "");
    return refusal([&] { (void)mh::open_torch_dist(store, "bad"); });
  };
  const std::string flat = open(counting({3}, 1));
  CHECK(contains(flat, "bad: tensor \"decoder.layers.mlp.experts.experts.linear_fc1.weight\""));
  CHECK(contains(flat, "[3], in which a dimension is missing"));
  CHECK(contains(open(at::empty({1 << 13, 1 << 13, 0})), "too many layers or experts"));
}

TEST_CASE("an export that is killed at any write is refused by name, and is no other format") {
  MemoryStorage store;
  Tensors all;
  for (const auto& [name, value] : small_model(/*experts=*/false)) {
    all[name] = value.to(at::kFloat);
  }
  mh::OutlinedTensors tensors = outlined_tensors(all);
  tensors.file_bytes = 300;
  mh::write_torch_dist(store, "out", 7, tensors);
  const Path step = "out/iter_0000007";
  CHECK(store.history().size() > 6);
  for (size_t i = 1; i < store.history().size(); ++i) {
    CAPTURE(i);
    MemoryStorage killed(store.history()[i]);
    const mh::TorchDistFormat format({}, {.storage = killed});
    const mh::DcpFormat plain({}, {.storage = killed});
    CHECK_FALSE(plain.detect("out"));
    CHECK_FALSE(plain.detect(step));
    CHECK(format.detect("out"));
    CHECK(format.detect(step));
    const bool is_whole = killed.contains(step / "metadata.json");
    CHECK(format.is_half(step) == !is_whole);
    if (is_whole) {
      CHECK(format.steps("out") == std::vector<int64_t>{7});
      check_equal(*format.open("out", 7), all);
      continue;
    }
    for (const Path& folder : {Path("out"), step}) {
      CHECK(contains(
          refusal([&] { (void)format.steps(folder); }),
          "out/iter_0000007 was begun and is not whole: metadata.json, which is written last"
      ));
    }
  }
}

TEST_CASE("iterations are steps, once metadata.json is there") {
  MemoryStorage store;
  const mh::TorchDistFormat format({}, {.storage = store});
  const mh::DcpFormat plain({}, {.storage = store});
  for (const char* name :
       {"iter_0000002",
        "iter_0000030",
        "iter_12345678",
        "iter_3",
        "iter_-000001",
        "iter_0000004x",
        "release"}) {
    mh::write_dcp_tensors(store, Path("theirs") / name, {}, "");
    mh::put_text(store, Path("theirs") / name / "metadata.json", "{}");
  }
  mh::write_dcp_tensors(store, "theirs/iter_0000040", {}, ""); // it was killed before the mark
  mh::put_text(store, "theirs/iter_0000050/metadata.json", "{}");
  mh::put_text(store, "theirs/latest_checkpointed_iteration.txt", "40");
  CHECK(format.detect("theirs"));
  CHECK(format.place("theirs") == "theirs");
  CHECK(format.steps("theirs") == std::vector<int64_t>{12345678, 30, 2});
  CHECK(format.open("theirs", 30)->path() == "theirs/iter_0000030");
  CHECK(format.steps("theirs/iter_0000030") == std::nullopt);
  CHECK_FALSE(format.detect("theirs/iter_0000050"));
  CHECK(format.detect("theirs/release"));
  CHECK_FALSE(plain.detect("theirs"));
  CHECK_FALSE(plain.detect("theirs/iter_0000030"));
  CHECK(plain.detect("theirs/iter_0000040")); // a folder of PyTorch's, as far as one can see
}
