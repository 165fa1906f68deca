#pragma once
/// Models that NeMo 2 names by their class.

#include "megahost/value.hpp"

#include <string>

namespace mh {

/// The settings that a class of nemo.collections.llm has unless a file says others, by the names of
/// its fields; none for a class that is not known.
///
/// Source:  NVIDIA/NeMo 2.0 to 2.4, nemo/collections/llm/gpt/model: base.py, llama.py, mistral.py,
///          mixtral.py, nemotron.py, qwen2.py, qwen3.py
[[nodiscard]] Table nemo_class(const std::string& name);

} // namespace mh
