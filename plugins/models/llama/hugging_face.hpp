#pragma once
#include <megahost/hugging_face.hpp>

/// transformers' Llama and its relatives.
[[nodiscard]] mh::HfMapping llama_hugging_face();
