#pragma once
/// The functions of the table, each defined in the file of its name.

#include "core/cuda/table.hpp"

namespace mh::cuda {

const char* activation(const ActivationCall& call, void* stream);
const char* dropout(const DropoutCall& call, void* stream);
const char* embedding(const EmbeddingCall& call, void* stream);
const char* norm(const NormCall& call, void* stream);
const char* norm_gradient(const NormGradientCall& call, void* stream);
const char* rotary(const RotaryCall& call, void* stream);
const char* row_sums(const RowSumsCall& call, void* stream);
const char* update(const UpdateCall& call, void* stream);
const char* vocab(const VocabCall& call, void* stream);

} // namespace mh::cuda
