#pragma once
/// The weights of Megatron's golden runs: under its names, and under ours.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace megatron {

inline constexpr int64_t kHeads = 8;
inline constexpr int64_t kSteps = 10;

using Tensors = std::map<std::string, at::Tensor>;

/// The usual CRC-32 (zlib's) of a name, as its seed.
inline uint64_t seed_of(const std::string& name) {
  uint32_t crc = ~0U;
  for (const char letter : name) {
    crc ^= static_cast<unsigned char>(letter);
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320U : 0U);
    }
  }
  return ~crc;
}

/// The initial value of a tensor that is no norm's.
inline at::Tensor normal_of(const std::string& name, const std::vector<int64_t>& sizes) {
  const bool last =
      name.find("linear_proj") != std::string::npos || name.find("fc2") != std::string::npos;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed_of(name));
  const double std = last && sizes.size() == 2 ? 0.02 / std::sqrt(8.0) : 0.02;
  return at::randn(sizes, generator) * std;
}

/// Weights of the golden llama, with `experts` feed-forwards (0: the dense one), or of the gpt with
/// experts; and their tokens.
inline Tensors seeded(int64_t experts, bool gpt = false) {
  Tensors all;
  const auto normal = [&](const std::string& name, const std::vector<int64_t>& sizes) {
    all[name] = normal_of(name, sizes);
  };
  const auto product = [&](const std::string& name, int64_t rows, int64_t columns) {
    normal(name + ".weight", {rows, columns});
    if (gpt) {
      normal(name + ".bias", {rows});
    }
  };
  const auto norm = [&](const std::string& name) {
    all[name + ".weight"] = at::ones({64});
    if (gpt) {
      all[name + ".bias"] = at::zeros({64});
    }
  };
  normal("embedding.word_embeddings.weight", {256, 64});
  normal(
      gpt ? "embedding.position_embeddings.weight" : "output_layer.weight", {gpt ? 32 : 256, 64}
  );
  norm("decoder.final_layernorm");
  for (int64_t i = 0; i < 4; ++i) {
    const std::string layer = "decoder.layers." + std::to_string(i) + ".";
    norm(layer + "input_layernorm");
    norm(layer + "pre_mlp_layernorm");
    product(layer + "self_attention.linear_proj", 64, 64);
    product(layer + "self_attention.linear_qkv", gpt ? 192 : 128, 64);
    const auto feed_forward = [&](const std::string& prefix) {
      product(prefix + "linear_fc1", gpt ? 256 : 320, 64);
      product(prefix + "linear_fc2", 64, gpt ? 256 : 160);
    };
    if (experts == 0) {
      feed_forward(layer + "mlp.");
      continue;
    }
    product(layer + "mlp.router", experts, 64);
    for (int64_t e = 0; e < experts; ++e) {
      feed_forward(layer + "mlp.experts.local_experts." + std::to_string(e) + ".");
    }
  }
  std::vector<at::Tensor> tokens;
  for (uint64_t step = 0; step < kSteps; ++step) {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + step);
    tokens.push_back(at::randint(0, 256, {8, 33}, generator, at::kLong));
  }
  all["tokens"] = at::stack(tokens);
  return all;
}

/// Experts one by one become all of a layer: [experts, 2, hidden, embed] or, of gpt, [experts,
/// hidden, embed]; [experts, embed, hidden]; their biases.
inline Tensors stacked(Tensors theirs) {
  const bool swiglu = theirs.contains("output_layer.weight");
  const std::string folder = "experts.local_experts.0.";
  for (const auto& [name, first] : Tensors(theirs)) {
    const auto place = name.find(folder);
    if (place == std::string::npos) {
      continue;
    }
    const bool first_product = name.find("fc1") != std::string::npos;
    const bool gated = first_product && swiglu;
    std::vector<at::Tensor> experts;
    for (int64_t e = 0;; ++e) {
      std::string one = name;
      one.replace(place, folder.size(), "experts.local_experts." + std::to_string(e) + ".");
      const auto found = theirs.find(one);
      if (found == theirs.end()) {
        break;
      }
      experts.push_back(gated ? found->second.view({2, -1, first.size(1)}) : found->second);
      theirs.erase(found);
    }
    theirs
        [name.substr(0, place) + "experts." +
         (gated           ? "gate_up"
          : first_product ? "up"
                          : "down") +
         name.substr(name.rfind('.'))] = at::stack(experts);
  }
  return theirs;
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto place = text.find(from);
  return place == std::string::npos ? text : text.replace(place, from.size(), to);
}

/// Megatron's tensors under our names: query, key and value rows are grouped by kv head, gate and
/// up rows follow one another.
inline Tensors our_names(const Tensors& theirs, int64_t kv_heads) {
  Tensors ours;
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
          std::pair("router.bias", "router.logit_bias"),
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

} // namespace megatron
