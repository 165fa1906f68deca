// Buffers of Megatron-LM's distributed optimizer; what megatron-core itself writes is in
// tests/parity/torch_dist.py.

#include "core/foreign/megatron_buffers.hpp"

#include "core/checkpoint/assembled.hpp"
#include "core/foreign/dcp.hpp"
#include "core/foreign/megatron.hpp"
#include "core/formats/pickle.hpp"
#include "core/formats/torch_file.hpp"
#include "core/storage/memory_storage.hpp"
#include "samples.hpp"
#include "tests/formats/refusal.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <map>

using mh::MemoryStorage;
using namespace mh::test;

namespace {

using StateDict = std::map<std::string, at::Tensor>;

constexpr const char* kOrder[] = {
    "input_layernorm.weight",
    "self_attention.linear_proj.weight",
    "self_attention.linear_qkv.weight",
    "pre_mlp_layernorm.weight",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc2.weight"};

std::string layer_name(int64_t layer, const std::string& body) {
  return "decoder.layers." + std::to_string(layer) + "." + body;
}

/// Two layers, gated.
StateDict buffered_model() {
  StateDict all{
      {"embedding.word_embeddings.weight", counting({8, 4}, 1)},
      {"output_layer.weight", counting({8, 4}, 40)},
      {"decoder.final_layernorm.weight", counting({4}, 80)}};
  const std::map<std::string, std::vector<int64_t>> shapes{
      {kOrder[0], {4}},
      {kOrder[1], {4, 4}},
      {kOrder[2], {12, 4}},
      {kOrder[3], {4}},
      {kOrder[4], {12, 4}},
      {kOrder[5], {4, 6}}};
  for (int64_t i = 0; i < 2; ++i) {
    double start = 1000 * static_cast<double>(i + 1);
    for (const auto& [body, shape] : shapes) {
      all[layer_name(i, body)] = counting(shape, start += 100);
    }
  }
  return all;
}

/// The names of a stage's parameters in the order of Megatron's own layers.
std::vector<std::string> module_order(int64_t stage, int64_t stages) {
  std::vector<std::string> names;
  if (stage == 0) {
    names.emplace_back("embedding.word_embeddings.weight");
  }
  for (int64_t i = stage * 2 / stages; i < (stage + 1) * 2 / stages; ++i) {
    for (const char* body : kOrder) {
      names.push_back(layer_name(i, body));
    }
  }
  if (stage == stages - 1) {
    names.insert(names.end(), {"decoder.final_layernorm.weight", "output_layer.weight"});
  }
  return names;
}

/// A rank's part of a tensor.
at::Tensor
rank_part(const std::string& name, const at::Tensor& value, int64_t rank, int64_t ranks) {
  if (name.ends_with("linear_fc1.weight")) {
    const auto halves = value.chunk(2);
    return at::cat(
        {halves[0].chunk(ranks)[static_cast<size_t>(rank)],
         halves[1].chunk(ranks)[static_cast<size_t>(rank)]}
    );
  }
  const bool columns = name.ends_with("proj.weight") || name.ends_with("fc2.weight");
  return name.find("norm") != std::string::npos
             ? value
             : value.chunk(ranks, columns ? 1 : 0)[static_cast<size_t>(rank)].contiguous();
}

/// The checkpoint that Megatron's optimizer saves of a model, in buckets of so many parameters.
struct Buffered {
  MemoryStorage store;
  StateDict model = buffered_model();
  int64_t tensor = 1, pipeline = 1;
  size_t in_bucket = 100;
  std::map<std::string, double> states{{"param", 0}, {"exp_avg", 0.25}, {"exp_avg_sq", 0.5}};
  std::vector<std::string> (*order)(int64_t, int64_t) = module_order;

  StateDict stored() const {
    StateDict all;
    for (const auto& [name, value] : model) {
      all[name] = value;
    }
    for (int64_t group = 0; group < tensor * pipeline; ++group) {
      std::vector<std::string> names = order(group / tensor, pipeline);
      std::reverse(names.begin(), names.end());
      for (const auto& [state, more] : states) {
        size_t bucket = 0;
        for (size_t i = 0; i < names.size(); i += in_bucket) {
          std::vector<at::Tensor> pieces;
          int64_t at = 0;
          for (size_t k = i; k < std::min(names.size(), i + in_bucket); ++k) {
            const at::Tensor part =
                rank_part(names[k], model.at(names[k]), group % tensor, tensor).flatten() + more;
            if (at % 64 != 0) {
              pieces.push_back(at::full({64 - at % 64}, -1.0F));
              at += 64 - at % 64;
            }
            pieces.push_back(part);
            at += part.numel();
          }
          all["optimizer.distributed.dp_group_idx_" + std::to_string(group) +
              ".gbuf_idx_0.dtype_(torch.float32, torch.float32).bucket_idx_" +
              std::to_string(bucket++) + "." + state] = at::cat(pieces);
        }
      }
    }
    return all;
  }

  std::unique_ptr<mh::CheckpointReader> open(const StateDict& tensors) {
    mh::OutlinedTensors outlined;
    for (const auto& [name, value] : tensors) {
      outlined.outlines.push_back({name, value.scalar_type(), value.sizes().vec()});
    }
    outlined.value = [tensors](const std::string& name) { return tensors.at(name); };
    (void)mh::write_dcp_tensors(store, "out", outlined, "");
    mh::PickleWriter out;
    out.mark().text("args").global("argparse", "Namespace").mark().tuple().make().mark();
    out.text("tensor_model_parallel_size").integer(tensor);
    out.text("pipeline_model_parallel_size").integer(pipeline).dict().build();
    mh::put_text(store, "out/common.pt", mh::torch_file_of(out.dict().finish()));
    return mh::open_torch_dist(store, "out");
  }

  void check() {
    const auto saved = open(stored());
    for (const auto& [name, value] : model) {
      CAPTURE(name);
      for (const auto& [state, more] : states) {
        const std::string stated =
            "optimizer." + (state == "param" ? "master" : state) + "." + name;
        REQUIRE(saved->find(stated) != nullptr);
        CHECK_FALSE(saved->find(stated)->is_weight);
        CHECK(whole_tensor(*saved, stated).equal(value + more));
      }
    }
    // A part of rows and columns.
    const std::string name = "decoder.layers.1.mlp.linear_fc2.weight";
    mh::Slice part{"optimizer.exp_avg." + name, {4, 6}, {1, 2}, at::full({2, 3}, 0.0F)};
    saved->read({&part, 1});
    CHECK(part.local.equal(model.at(name).narrow(0, 1, 2).narrow(1, 2, 3) + 0.25));
  }

  /// The reason why buffers are not read; "" if they are.
  std::string refusal(const StateDict& tensors) {
    const auto saved = open(tensors);
    const bool is_read = saved->find("optimizer.master.output_layer.weight") != nullptr;
    const std::string why = nlohmann::json::parse(saved->arguments()).value(mh::kUnreadState, "");
    CHECK(is_read == why.empty());
    const size_t colon = why.find("not read: ");
    return colon == std::string::npos ? why : why.substr(colon + 10);
  }
};

/// The same, each name changed where it is a buffer's.
StateDict renamed(const StateDict& stored, std::string (*rename)(std::string name)) {
  StateDict all;
  for (const auto& [name, value] : stored) {
    all[name.starts_with("optimizer.") ? rename(name) : name] = value;
  }
  return all;
}

} // namespace

TEST_CASE_FIXTURE(Buffered, "masters and moments are found in buffers") {
  check();
}

TEST_CASE_FIXTURE(Buffered, "buffers in buckets, of tensor-parallel ranks and of stages") {
  in_bucket = 3;
  check();
  tensor = 2;
  pipeline = 2;
  check();
}

TEST_CASE_FIXTURE(Buffered, "Transformer Engine has a norm in the linear layer after it") {
  order = [](int64_t stage, int64_t stages) {
    std::vector<std::string> names = module_order(stage, stages);
    for (size_t i = 0; i + 1 < names.size(); ++i) {
      if (names[i].ends_with("input_layernorm.weight")) {
        std::swap(names[i], names[i + 1]);
        ++i;
      }
    }
    return names;
  };
  check();
}

TEST_CASE_FIXTURE(Buffered, "buckets that were read are no tensors by themselves") {
  const auto saved = open(renamed(stored(), [](std::string name) { return "chained_0." + name; }));
  CHECK(saved->tensors().size() == model.size() * (1 + states.size()));
}

TEST_CASE_FIXTURE(Buffered, "buffers of another order give nothing") {
  CHECK(refusal(stored()).empty());
  order = [](int64_t stage, int64_t stages) {
    std::vector<std::string> names = module_order(stage, stages);
    std::swap(names[1], names[7]); // two norms of different layers
    return names;
  };
  CHECK(
      refusal(stored()) ==
      "where the master of \"decoder.layers.0.input_layernorm.weight\" should be, by the order of "
      "modules, are other values than the weight's"
  );
}

TEST_CASE_FIXTURE(Buffered, "buffers of other sizes give nothing") {
  StateDict longer = stored();
  for (auto& [name, value] : longer) {
    if (name.starts_with("optimizer.")) {
      value = at::cat({value, at::full({64}, 0.0F)});
    }
  }
  CHECK(
      refusal(longer) == "what is known of the order of its modules does not give the sizes of the "
                         "buffers of pipeline stage 0"
  );
}

TEST_CASE_FIXTURE(Buffered, "buffers of unknown ranks give nothing") {
  const StateDict one = stored();
  tensor = 2; // the arguments say so
  CHECK(
      refusal(one) ==
      "there are buffers of 1 model-parallel ranks, and by the saved arguments there "
      "were 2"
  );
}

TEST_CASE_FIXTURE(Buffered, "buffers of several number formats, or unknown ones, give nothing") {
  const StateDict mixed = renamed(stored(), [](std::string name) {
    const size_t at = name.ends_with(".param") ? name.find("torch.float32") : std::string::npos;
    return at == std::string::npos ? name : name.replace(at, 13, "torch.uint8");
  });
  CHECK(refusal(mixed) == "its weights have several number formats");
  const StateDict unknown = renamed(stored(), [](std::string name) {
    return name.replace(name.find("gbuf_idx_0."), 11, "");
  });
  CHECK(refusal(unknown).ends_with("is no bucket of a buffer that is known"));
}
