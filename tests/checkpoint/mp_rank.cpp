// Megatron-LM's checkpoints of a file for each rank, and NeuronX's form of them.

#include "core/base/printable.hpp"
#include "core/foreign/megatron.hpp"
#include "core/formats/pickle.hpp"
#include "core/formats/torch_file.hpp"
#include "core/formats/zip.hpp"
#include "core/storage/memory_storage.hpp"
#include "samples.hpp"
#include "tests/formats/refusal.hpp"

#include <ATen/ops/cat.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <map>

using mh::MemoryStorage;
using mh::Path;
using mh::PickleWriter;
using namespace mh::test;

namespace {

using RankTensorMap = std::map<std::string, at::Tensor>;

/// Writes the keys of nested dicts: "model.a.b" is {"model": {"a.b": ...}}.
class TorchFileWriter {
public:
  int64_t version = 3;
  bool is_xser = false;
  std::map<std::string, int64_t> args{};

  /// A file of torch.save; of xser, the files of its tensors, too.
  void
  write(MemoryStorage& store, const Path& path, const std::map<std::string, RankTensorMap>& dicts) {
    PickleWriter out;
    int64_t count = 0;
    std::string storages;
    mh::ZipLayout
        zip; // layout of the storages, behind the pickle: written twice to know their places
    out.mark();
    for (const auto& [name, tensors] : dicts) {
      out.text(name).mark();
      for (const auto& [key, value] : tensors) {
        out.text(key);
        is_xser ? reference(out, count) : tensor(out, value, count);
        if (is_xser) {
          const auto bytes = mh::bytes_of(value);
          const auto [before, after] = mh::torch_envelope(
              mh::dtype_of(value.scalar_type()), value.sizes().vec(), mh::crc32(bytes)
          );
          mh::put_text(
              store,
              path.string() + ".tensors/tensor_" + std::to_string(count) + ".pt",
              before + std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) +
                  after
          );
        }
        ++count;
      }
      out.dict();
    }
    out.text("args").global("argparse", "Namespace").mark().tuple().make().mark();
    for (const auto& [key, value] : args) {
      out.text(key).integer(value);
    }
    out.text("attention_backend").global("megatron.core.transformer.enums", "AttnBackend");
    out.mark().integer(5).tuple().reduce();
    out.dict().build();
    out.text("iteration").integer(70);
    if (version > 0) {
      out.text("checkpoint_version").integer(version);
    }
    const std::string pickle = out.dict().finish();
    std::string bytes = zip.entry("archive/data.pkl", pickle.size(), mh::crc32(pickle)) + pickle;
    int64_t key = 0;
    for (const auto& [name, tensors] : dicts) {
      for (const auto& [text, value] : tensors) {
        const auto data = mh::bytes_of(value);
        if (!is_xser) {
          bytes += zip.entry("archive/data/" + std::to_string(key++), data.size(), mh::crc32(data));
          bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
        }
      }
    }
    bytes += zip.finish();
    mh::put_text(store, path, bytes);
  }

private:
  static void reference(PickleWriter& out, int64_t id) {
    out.global("torch_xla.utils.serialization", "TensorReference").mark().tuple().make();
    out.mark().text("tid").integer(id).dict().build();
  }

  static void tensor(PickleWriter& out, const at::Tensor& value, int64_t key) {
    out.global("torch._utils", "_rebuild_tensor_v2").mark().mark().text("storage");
    out.global("torch", "FloatStorage").text(std::to_string(key)).text("cpu");
    out.integer(value.numel()).tuple().persistent();
    out.integer(0).integers(value.sizes().vec()).integers(value.strides().vec()).boolean(false);
    out.global("collections", "OrderedDict").mark().tuple().reduce().tuple().reduce();
  }
};

/// A gated model of four layers by the names of its state_dict.
RankTensorMap gated_model(int64_t layers = 4) {
  RankTensorMap all{
      {"embedding.word_embeddings.weight", counting({8, 4}, 1)},
      {"output_layer.weight", counting({8, 4}, 40)},
      {"decoder.final_layernorm.weight", counting({4}, 80)}};
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = "decoder.layers." + std::to_string(i) + ".";
    const auto start = static_cast<double>(1000 * (i + 1));
    all[layer + "input_layernorm.weight"] = counting({4}, start);
    all[layer + "self_attention.linear_qkv.weight"] = counting({12, 4}, start + 10);
    all[layer + "self_attention.linear_proj.weight"] = counting({4, 4}, start + 100);
    all[layer + "mlp.linear_fc1.weight"] = counting({12, 4}, start + 200);
    all[layer + "mlp.linear_fc2.weight"] = counting({4, 6}, start + 300);
  }
  return all;
}

at::Tensor share(const std::string& name, const at::Tensor& value, int64_t rank, int64_t ranks) {
  if (name.ends_with("linear_fc1.weight")) { // its part of each half
    const auto halves = value.chunk(2);
    return at::cat(
        {share("up_weight", halves[0], rank, ranks), share("up_weight", halves[1], rank, ranks)}
    );
  }
  const bool columns = name.ends_with("linear_proj.weight") || name.ends_with("linear_fc2.weight");
  return name.find("norm") != std::string::npos
             ? value
             : value.chunk(ranks, columns ? 1 : 0)[static_cast<size_t>(rank)].contiguous();
}

/// The part of a layer's tensor on a stage that begins with layer `first`; empty for other stages.
std::string staged(const std::string& name, int64_t first, int64_t count) {
  constexpr std::string_view kBefore = "decoder.layers.";
  if (!name.starts_with(kBefore)) {
    const bool is_last = name.starts_with("output") || name.starts_with("decoder.final");
    return is_last == (first > 0) ? name : "";
  }
  const int64_t layer = name[kBefore.size()] - '0';
  return layer < first || layer >= first + count
             ? ""
             : std::string(kBefore) + std::to_string(layer - first) +
                   name.substr(kBefore.size() + 1);
}

std::string rank_folder(int64_t tensor, int64_t stage) {
  return "run/iter_0000070/mp_rank_0" + std::to_string(tensor) + "_00" + std::to_string(stage);
}

struct TwoByTwo {
  MemoryStorage store;
  RankTensorMap model = gated_model();
  TorchFileWriter writer;

  void write() {
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t p = 0; p < 2; ++p) {
        RankTensorMap mine;
        for (const auto& [name, value] : model) {
          if (const std::string here = staged(name, 2 * p, 2); !here.empty()) {
            mine[here] = share(name, value, t, 2);
          }
        }
        writer.write(store, rank_folder(t, p) + "/model_optim_rng.pt", {{"model", mine}});
      }
    }
  }

  void check() {
    const auto saved = mh::open_mp_rank(store, "run/iter_0000070");
    REQUIRE(saved->tensors().size() == model.size());
    for (const auto& [name, value] : model) {
      CAPTURE(name);
      CHECK(whole_tensor(*saved, name).equal(value));
    }
    CHECK(saved->names() == mh::TensorNames::megatron);
    CHECK(nlohmann::json::parse(saved->arguments())["iteration"] == 70);
    CHECK(saved->verify([](uint64_t) {}).damages.empty());
  }

  std::string refused() {
    return refusal([&] { (void)mh::open_mp_rank(store, "run/iter_0000070"); });
  }
};

} // namespace

TEST_CASE_FIXTURE(TwoByTwo, "tensor-parallel parts and pipeline stages are joined") {
  write();
  const mh::MpRankFormat format({}, {.storage = store});
  CHECK(format.detect("run"));
  CHECK(format.steps("run") == std::vector<int64_t>{70});
  CHECK(format.detect("run/iter_0000070"));
  CHECK_FALSE(format.detect(rank_folder(0, 0)));
  check();
}

TEST_CASE_FIXTURE(TwoByTwo, "xser keeps each tensor in a file of its own") {
  writer.is_xser = true;
  write();
  check();
  const Path apart = rank_folder(1, 0) + "/model_optim_rng.pt.tensors/tensor_0.pt";
  const std::string good = store.contents(apart);
  const auto bytes = mh::bytes_of(model.at("decoder.layers.0.input_layernorm.weight"));
  const std::string first(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  store.contents(apart)[good.find(first)] ^= 1;
  const auto damages = mh::open_mp_rank(store, "run/iter_0000070")->verify([](uint64_t) {}).damages;
  REQUIRE(damages.size() == 1);
  CHECK(contains(damages[0], "mp_rank_01_000/model_optim_rng.pt.tensors/tensor_0.pt"));
  store.remove(apart);
  CHECK(contains(refused(), "tensor_0.pt, which is not there"));
}

TEST_CASE("virtual stages, experts of ranks and old names are numbered over the whole model") {
  MemoryStorage store;
  TorchFileWriter writer;
  const RankTensorMap model = gated_model();
  for (int64_t p = 0; p < 2; ++p) { // layers 0 and 2 on the first stage
    std::map<std::string, RankTensorMap> dicts;
    for (int64_t k = 0; k < 2; ++k) {
      RankTensorMap& mine = dicts["model" + std::to_string(k)];
      for (const auto& [name, value] : model) {
        const std::string here = staged(name, 2 * k + p, 1);
        if (name.starts_with("decoder.layers.") && !here.empty()) {
          mine[here] = value;
        }
      }
    }
    writer.write(store, "vpp/mp_rank_00_00" + std::to_string(p) + "/model_optim_rng.pt", dicts);
  }
  const auto chunks = mh::open_mp_rank(store, "vpp");
  for (const auto& [name, value] : model) {
    if (name.starts_with("decoder.layers.")) {
      CAPTURE(name);
      CHECK(whole_tensor(*chunks, name).equal(value));
    }
  }

  writer.args = {{"pipeline_model_parallel_size", 1}, {"expert_model_parallel_size", 2}};
  for (int64_t r = 0; r < 2; ++r) {
    const auto start = static_cast<double>(100 * r);
    const std::string experts = "decoder.layers.0.mlp.experts.";
    const std::string predicting = "mtp.layers.0.transformer_layer.mlp.experts.";
    writer.write(
        store,
        "ep/mp_rank_00_00" + std::to_string(r) + "/model_optim_rng.pt",
        {{"model",
          {{"decoder.layers.0.mlp.router.weight", counting({4, 4}, 1)},
           {experts + "local_experts.0.linear_fc2.weight", counting({4, 3}, start + 10)},
           {experts + "linear_fc2.weight1", counting({4, 3}, start + 50)},
           {predicting + "linear_fc2.weight0", counting({4, 3}, start + 80)}}}}
    );
  }
  const auto mixture = mh::open_mp_rank(store, "ep");
  REQUIRE(mixture->tensors().size() == 7);
  for (const auto& [expert, start] : {std::pair("0", 80.0), std::pair("2", 180.0)}) {
    const std::string name = "mtp.layers.0.transformer_layer.mlp.experts.local_experts.";
    CHECK(
        whole_tensor(*mixture, name + expert + ".linear_fc2.weight").equal(counting({4, 3}, start))
    );
  }
  for (int64_t e = 0; e < 4; ++e) {
    const double start = (e / 2) * 100 + (e % 2 == 0 ? 10 : 50);
    const std::string name =
        "decoder.layers.0.mlp.experts.local_experts." + std::to_string(e) + ".linear_fc2.weight";
    CHECK(whole_tensor(*mixture, name).equal(counting({4, 3}, start)));
  }

  writer.args = {};
  writer.write(
      store,
      "old/mp_rank_00/model_optim_rng.pt",
      {{"model",
        {{"language_model.embedding.word_embeddings.weight", counting({8, 4}, 1)},
         {"language_model.encoder.layers.0.mlp.dense_h_to_4h.weight", counting({6, 4}, 2)},
         {"word_embeddings_for_head.weight", counting({8, 4}, 1)}}},
       {"optimizer", {{"x", counting({4}, 1)}}}}
  );
  const auto old = mh::open_mp_rank(store, "old");
  REQUIRE(old->tensors().size() == 2);
  CHECK(old->tensors()[0].name == "decoder.layers.0.mlp.linear_fc1.weight");
}

TEST_CASE_FIXTURE(TwoByTwo, "what is not whole is refused with its file and tensor") {
  writer.version = 0;
  write();
  CHECK(contains(refused(), "checkpoint_version 0"));
  writer.version = 3;
  write();
  const auto all = store.objects();
  const Path one = rank_folder(1, 1) + "/model_optim_rng.pt";
  store.remove(one);
  CHECK(contains(refused(), "holds the files of 3 ranks"));

  RankTensorMap other;
  for (const auto& [name, value] : model) {
    if (const std::string here = staged(name, 2, 2); !here.empty()) {
      other[here] = share(name, value, 1, 2);
    }
  }
  RankTensorMap lacking = other;
  lacking.erase("decoder.layers.1.self_attention.linear_proj.weight");
  writer.write(store, one, {{"model", lacking}});
  CHECK(contains(refused(), "decoder.layers.1.self_attention.linear_proj.weight"));
  CHECK(contains(refused(), "1 of 2 tensor-parallel ranks"));
  other["decoder.layers.0.mlp.linear_fc2.weight"] = counting({4, 2}, 1);
  writer.write(store, one, {{"model", other}});
  CHECK(contains(
      refused(),
      "mp_rank_01_001/model_optim_rng.pt: tensor \"model.decoder.layers.0.mlp.linear_fc2.weight\""
  ));
  CHECK(contains(refused(), "[4, 2], that of the first rank [4, 3]"));
  writer.write(
      store, one, {{"model", {{"decoder.layers.mlp.linear_fc2.weight", counting({4, 3}, 1)}}}}
  );
  CHECK(contains(refused(), "no number of a layer"));
}

TEST_CASE_FIXTURE(TwoByTwo, "files that are cut or have other bits end in a sentence") {
  write();
  const Path one = rank_folder(0, 1) + "/model_optim_rng.pt";
  const std::string good = store.contents(one);
  const auto read_all = [&] {
    const auto saved = mh::open_mp_rank(store, "run/iter_0000070");
    for (const auto& tensor : saved->tensors()) {
      (void)whole_tensor(*saved, tensor.name);
    }
  };
  size_t refusals = 0;
  for (size_t size = 0; size < good.size(); size += 97) {
    store.contents(one) = good.substr(0, size);
    const std::string said = refusal(read_all);
    CHECK(contains(said, "mp_rank_00_001/model_optim_rng.pt"));
  }
  for (size_t at = 0; at < good.size(); at += 13) {
    store.contents(one) = good;
    store.contents(one)[at] ^= 0x10;
    refusals += refusal(read_all).empty() ? 0 : 1;
  }
  CHECK(refusals > 50);
}
