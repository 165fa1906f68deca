#pragma once
/// How Mixtral, Qwen's mixtures and DeepSeek-V3 say the same in config.json.

#include <megahost/hugging_face.hpp>

[[nodiscard]] mh::HfMapping moe_hugging_face();
