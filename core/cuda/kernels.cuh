#pragma once
/// The functions of the table, each defined in the file of its name.

#include "core/cuda/table.hpp"

namespace mh::cuda {

const char* activation(const ActivationLaunch& call, void* stream);
const char* dropout(const DropoutLaunch& call, void* stream);
const char* embedding(const EmbeddingLaunch& call, void* stream);
const char* norm(const NormLaunch& call, void* stream);
const char* norm_gradient(const NormGradientLaunch& call, void* stream);
const char* rotary(const RotaryLaunch& call, void* stream);
const char* row_sums(const RowSumsLaunch& call, void* stream);
const char* update(const UpdateLaunch& call, void* stream);
const char* vocab(const VocabLaunch& call, void* stream);

} // namespace mh::cuda
