// The names of a decoder's parameters that megahost/nn/decoder.hpp lists are those that it has.

#include "megahost/model.hpp"
#include "megahost/nn/decoder.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
#include <string>

using namespace mh;

namespace {

std::set<std::string> listed() {
  std::ifstream header(
      std::string(std::getenv("MEGAHOST_SOURCE")) + "/core/include/megahost/nn/decoder.hpp"
  );
  REQUIRE(header.good());
  static const std::regex row("///   ((embedding|layers\\.N|head)\\.[a-z_.]+)  *\\[.*");
  std::set<std::string> names;
  std::smatch match;
  for (std::string line; std::getline(header, line);) {
    if (std::regex_match(line, match, row)) {
      names.insert(match[1]);
    }
  }
  return names;
}

void add_names(const DecoderConfig& config, std::set<std::string>& ret_names) {
  const Mesh mesh;
  const Rules rules;
  const Decoder decoder(config, {.vocab = 32, .seq_length = 8});
  const Model model(
      decoder, {.mesh = &mesh, .rules = &rules, .device = at::kMeta, .seq = 8, .microbatch = 1}
  );
  for (const Parameter& parameter : model.parameters().all()) {
    for (const Piece& piece : parameter.pieces) {
      ret_names.insert(std::regex_replace(piece.name, std::regex("layers\\.[0-9]+"), "layers.N"));
    }
  }
}

} // namespace

TEST_CASE("the header lists the parameters of every decoder") {
  DecoderConfig gpt; // learned positions, layer norms, biases
  gpt.layers = 2, gpt.hidden = 16, gpt.heads = 2, gpt.tied = false;
  DecoderConfig gated = gpt;
  gated.activation = "swiglu", gated.qk_norm = true, gated.qk_norm_over = "all_heads";
  gated.sinks = true, gated.attention_gate = true;
  DecoderConfig layer_norms = gpt;
  layer_norms.qk_norm = true, layer_norms.qk_norm_kind = "layernorm";
  DecoderConfig latent = gpt;
  latent.kv_rank = 8, latent.q_rank = 8, latent.rope_head_dim = 4;
  latent.positions = "rope", latent.norm = "rmsnorm", latent.bias = false;
  DecoderConfig whole_queries = latent;
  whole_queries.q_rank = std::nullopt;
  DecoderConfig sandwich = latent;
  sandwich.norm_placement = "sandwich";
  DecoderConfig biased_head = gpt;
  biased_head.head_bias = true;
  std::set<std::string> names;
  for (const DecoderConfig& config :
       {gpt, gated, layer_norms, latent, whole_queries, sandwich, biased_head}) {
    add_names(config, names);
  }
  CHECK(listed() == names);

  DecoderConfig shared = gpt;
  shared.parallel_residual = true;
  std::set<std::string> two_norms, one_norm;
  add_names(shared, two_norms);
  shared.shared_norm = true;
  add_names(shared, one_norm);
  CHECK(one_norm.insert("layers.N.mlp_norm.weight").second);
  CHECK(one_norm.insert("layers.N.mlp_norm.bias").second);
  CHECK(one_norm == two_norms);
}
