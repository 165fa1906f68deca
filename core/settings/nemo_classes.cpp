#include "core/settings/nemo_classes.hpp"

#include "core/language/read.hpp"

#include <memory>

namespace mh {

namespace {

/// `is`: the class that one is derived from. Names in small letters are of no class.
constexpr const char* kClasses = R"(
[GPTConfig126M]
num_layers = 12
hidden_size = 768
ffn_hidden_size = 3072
num_attention_heads = 12
seq_length = 2048
bias_activation_fusion = true
[GPTConfig5B]
is = "GPTConfig126M"
num_layers = 24
hidden_size = 4096
ffn_hidden_size = 16384
num_attention_heads = 32
[GPTConfig7B]
is = "GPTConfig126M"
num_layers = 32
hidden_size = 4096
ffn_hidden_size = 10880
num_attention_heads = 32
[GPTConfig20B]
is = "GPTConfig126M"
num_layers = 44
hidden_size = 6144
ffn_hidden_size = 24576
num_attention_heads = 48
[GPTConfig40B]
is = "GPTConfig126M"
num_layers = 48
hidden_size = 8192
ffn_hidden_size = 32768
num_attention_heads = 64
[GPTConfig175B]
is = "GPTConfig126M"
num_layers = 96
hidden_size = 12288
ffn_hidden_size = 49152
num_attention_heads = 96
hidden_dropout = 0.0
attention_dropout = 0.0
layernorm_zero_centered_gamma = true

[LlamaConfig]
normalization = "RMSNorm"
activation_func = "silu"
gated_linear_unit = true
position_embedding_type = "rope"
add_bias_linear = false
seq_length = 4096
attention_dropout = 0.0
hidden_dropout = 0.0
share_embeddings_and_output_weights = false
bias_activation_fusion = true
[Llama2Config7B]
is = "LlamaConfig"
num_layers = 32
hidden_size = 4096
num_attention_heads = 32
num_query_groups = 32
ffn_hidden_size = 11008
[Llama2Config13B]
is = "LlamaConfig"
num_layers = 40
hidden_size = 5120
num_attention_heads = 40
num_query_groups = 40
ffn_hidden_size = 13824
[Llama2Config70B]
is = "LlamaConfig"
num_layers = 80
hidden_size = 8192
num_attention_heads = 64
num_query_groups = 8
ffn_hidden_size = 28672
[Llama3Config]
is = "LlamaConfig"
num_query_groups = 8
init_method_std = 0.01
[Llama3Config8B]
is = "Llama3Config"
rotary_base = 500000
seq_length = 8192
num_layers = 32
hidden_size = 4096
ffn_hidden_size = 14336
num_attention_heads = 32
[Llama3Config70B]
is = "Llama3Config"
rotary_base = 500000
seq_length = 8192
num_layers = 80
hidden_size = 8192
ffn_hidden_size = 28672
num_attention_heads = 64
init_method_std = 0.008944
[Llama31Config]
is = "Llama3Config"
scale_factor = 8
low_freq_factor = 1
high_freq_factor = 4
old_context_len = 8192
init_method_std = 0.02
[Llama31Config8B]
is = "Llama31Config"
rotary_base = 500000
seq_length = 131072
num_layers = 32
hidden_size = 4096
ffn_hidden_size = 14336
num_attention_heads = 32
[Llama31Config70B]
is = "Llama31Config"
rotary_base = 500000
seq_length = 131072
num_layers = 80
hidden_size = 8192
ffn_hidden_size = 28672
num_attention_heads = 64
[Llama31Config405B]
is = "Llama31Config"
rotary_base = 500000
seq_length = 131072
num_layers = 126
hidden_size = 16384
ffn_hidden_size = 53248
num_attention_heads = 128
[Llama32Config1B]
is = "Llama31Config"
scale_factor = 32
share_embeddings_and_output_weights = true
rotary_base = 500000
num_layers = 16
hidden_size = 2048
ffn_hidden_size = 8192
num_attention_heads = 32
[Llama32Config3B]
is = "Llama31Config"
scale_factor = 32
share_embeddings_and_output_weights = true
rotary_base = 500000
num_layers = 28
hidden_size = 3072
ffn_hidden_size = 8192
num_attention_heads = 24
[CodeLlamaConfig7B]
is = "Llama2Config7B"
rotary_base = 1000000
seq_length = 16384
[CodeLlamaConfig13B]
is = "Llama2Config13B"
rotary_base = 1000000
seq_length = 16384
[CodeLlamaConfig34B]
is = "LlamaConfig"
num_layers = 48
hidden_size = 8192
num_attention_heads = 64
num_query_groups = 8
ffn_hidden_size = 22016
rotary_base = 1000000
seq_length = 16384
[CodeLlamaConfig70B]
is = "Llama2Config70B"

[mistral]
is = "LlamaConfig"
bias_activation_fusion = false
num_query_groups = 8
init_method_std = 0.02
[MistralConfig7B]
is = "mistral"
num_layers = 32
hidden_size = 4096
num_attention_heads = 32
ffn_hidden_size = 14336
seq_length = 32768
window_size = [4096, 0]
[MistralNeMoConfig12B]
is = "mistral"
num_layers = 40
hidden_size = 5120
num_attention_heads = 32
ffn_hidden_size = 14336
kv_channels = 128
rotary_base = 1000000.0
[MistralNeMo2407Config12B]
is = "MistralNeMoConfig12B"
[MistralNeMo2407Config123B]
is = "mistral"
num_layers = 88
hidden_size = 12288
ffn_hidden_size = 28672
num_attention_heads = 96
kv_channels = 128
rotary_base = 1000000.0

[MixtralConfig]
is = "mistral"
num_layers = 32
hidden_size = 4096
num_attention_heads = 32
ffn_hidden_size = 14336
num_moe_experts = 8
moe_aux_loss_coeff = 0.01
moe_router_topk = 2
moe_router_pre_softmax = true
moe_token_dispatcher_type = "alltoall"
moe_router_load_balancing_type = "aux_loss"
rotary_base = 1000000.0
[MixtralConfig8x3B]
is = "MixtralConfig"
hidden_size = 2560
ffn_hidden_size = 8960
[MixtralConfig8x7B]
is = "MixtralConfig"
[MixtralConfig8x22B]
is = "MixtralConfig"
num_layers = 56
hidden_size = 6144
num_attention_heads = 48
ffn_hidden_size = 16384
seq_length = 65536

[nemotron]
normalization = "LayerNorm"
activation_func = "squared_relu"
position_embedding_type = "rope"
share_embeddings_and_output_weights = false
add_bias_linear = false
hidden_dropout = 0.0
attention_dropout = 0.0
rotary_percent = 0.5
layernorm_zero_centered_gamma = true
seq_length = 4096
[Nemotron3Config4B]
is = "nemotron"
num_layers = 32
hidden_size = 3072
ffn_hidden_size = 9216
num_attention_heads = 24
num_query_groups = 8
kv_channels = 128
init_method_std = 0.0134
[NemotronConfig]
is = "Nemotron3Config4B"
[Nemotron3Config8B]
is = "nemotron"
num_layers = 32
hidden_size = 4096
ffn_hidden_size = 16384
num_attention_heads = 32
init_method_std = 0.010
[Nemotron3Config22B]
is = "nemotron"
num_layers = 40
hidden_size = 6144
ffn_hidden_size = 24576
num_attention_heads = 48
init_method_std = 0.008
[Nemotron4Config15B]
is = "nemotron"
num_layers = 32
hidden_size = 6144
ffn_hidden_size = 24576
num_attention_heads = 48
num_query_groups = 8
init_method_std = 0.0134
[Nemotron4Config340B]
is = "nemotron"
num_layers = 96
hidden_size = 18432
ffn_hidden_size = 73728
num_attention_heads = 96
num_query_groups = 8
init_method_std = 0.0063

[Qwen2Config]
is = "LlamaConfig"
bias_activation_fusion = false
add_qkv_bias = true
init_method_std = 0.02
vocab_size = 151936
layernorm_epsilon = 1e-6
rotary_base = 1000000.0
[Qwen2Config500M]
is = "Qwen2Config"
num_layers = 24
hidden_size = 896
num_attention_heads = 14
num_query_groups = 2
ffn_hidden_size = 4864
[Qwen2Config1P5B]
is = "Qwen2Config"
num_layers = 28
hidden_size = 1536
num_attention_heads = 12
num_query_groups = 2
ffn_hidden_size = 8960
[Qwen2Config7B]
is = "Qwen2Config"
num_layers = 28
hidden_size = 3584
num_attention_heads = 28
num_query_groups = 4
ffn_hidden_size = 18944
vocab_size = 152064
[Qwen2Config72B]
is = "Qwen2Config"
num_layers = 80
hidden_size = 8192
num_attention_heads = 64
num_query_groups = 8
ffn_hidden_size = 29568
vocab_size = 152064
layernorm_epsilon = 1e-5

[Qwen3Config]
is = "Qwen2Config"
add_qkv_bias = false
qk_layernorm = true
kv_channels = 128
num_query_groups = 8
[Qwen3Config600M]
is = "Qwen3Config"
num_layers = 28
hidden_size = 1024
num_attention_heads = 16
ffn_hidden_size = 3072
share_embeddings_and_output_weights = true
[Qwen3Config1P7B]
is = "Qwen3Config"
num_layers = 28
hidden_size = 2048
num_attention_heads = 16
ffn_hidden_size = 6144
share_embeddings_and_output_weights = true
[Qwen3Config4B]
is = "Qwen3Config"
num_layers = 36
hidden_size = 2560
num_attention_heads = 32
ffn_hidden_size = 9728
share_embeddings_and_output_weights = true
[Qwen3Config8B]
is = "Qwen3Config"
num_layers = 36
hidden_size = 4096
num_attention_heads = 32
ffn_hidden_size = 12288
[Qwen3Config14B]
is = "Qwen3Config"
num_layers = 40
hidden_size = 5120
num_attention_heads = 40
ffn_hidden_size = 17408
[Qwen3Config32B]
is = "Qwen3Config"
num_layers = 64
hidden_size = 5120
num_attention_heads = 64
ffn_hidden_size = 25600
[Qwen3MoEConfig]
is = "Qwen3Config"
num_moe_experts = 128
moe_router_load_balancing_type = "aux_loss"
moe_aux_loss_coeff = 1e-3
moe_router_topk = 8
moe_router_pre_softmax = false
moe_grouped_gemm = true
moe_token_dispatcher_type = "alltoall"
[Qwen3Config30B_A3B]
is = "Qwen3MoEConfig"
num_layers = 48
hidden_size = 2048
num_attention_heads = 32
num_query_groups = 4
ffn_hidden_size = 6144
moe_ffn_hidden_size = 768
[Qwen3Config235B_A22B]
is = "Qwen3MoEConfig"
num_layers = 94
hidden_size = 4096
num_attention_heads = 64
num_query_groups = 4
ffn_hidden_size = 12288
moe_ffn_hidden_size = 1536
)";

} // namespace

Table nemo_class(const std::string& name) {
  static const Value classes =
      read_toml(std::make_shared<const Source>(Source{"NeMo's classes", kClasses, "NeMo"}));
  const Value* row = classes.find(name);
  if (row == nullptr) {
    return {};
  }
  const Value* above = row->find("is");
  Table all = above == nullptr ? Table() : nemo_class(above->as_string());
  for (const auto& entry : row->as_table()) {
    if (entry.key != "is") {
      all.set(entry.key, entry.value);
    }
  }
  return all;
}

} // namespace mh
