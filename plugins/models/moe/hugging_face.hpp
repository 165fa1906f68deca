#pragma once
/// How Mixtral, Qwen's mixtures, DeepSeek-V3 and GPT-OSS say the same in config.json.

#include <megahost/hugging_face.hpp>

[[nodiscard]] mh::HfMapping moe_hugging_face();
