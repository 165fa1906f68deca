#pragma once
/// Counterparts of GPT and its relatives at Hugging Face.

#include <megahost/hugging_face.hpp>
#include <megahost/nn/decoder.hpp>

#include <vector>

namespace mh::gpt {

/// transformers' GPT-2, the first GPT, GPT-NeoX, Phi and Falcon.
[[nodiscard]] HfMapping hugging_face_mapping();

/// Names of a model of these complete fields; empty where transformers has no counterpart.
///
/// They are those of GPT2LMHeadModel, or OpenAIGPTLMHeadModel where norms come after the sums. With
/// rotary positions they are PhiForCausalLM's where the output layer has a bias, GPTNeoXForCausalLM's
/// where other layers have biases, each part its own norm and each head its own key, and else
/// FalconForCausalLM's.
[[nodiscard]] std::vector<HfTensor> hugging_face_names(const DecoderConfig& config);

} // namespace mh::gpt
