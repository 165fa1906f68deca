#pragma once
/// How the operators of this room reach LibTorch's dispatcher.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>

namespace mh::ops {

/// The places that an operator is registered at. They live as long as the process. Every operator
/// has a plain form, which is made of LibTorch's and serves all devices that have no better one.
struct Libraries {
  torch::Library &definitions, &cpu, &cuda, &plain, &meta;
};

/// The library in which operators are defined or get forms. Registrations last as long as the
/// process: nothing takes them back.
[[nodiscard]] torch::Library&
lasting_library(torch::Library::Kind kind, const char* name, std::optional<c10::DispatchKey> key);

void register_token_ops(Libraries& libraries);
void register_attention(Libraries& libraries);
void register_gemm(Libraries& libraries);
void register_norm(Libraries& libraries);
void register_activation(Libraries& libraries);
void register_row_ops(Libraries& libraries);
void register_update(Libraries& libraries);
void register_fp8(Libraries& libraries);
void register_experts(Libraries& libraries);

/// The operator of this name, to be called like `Function`.
template <class Function>
c10::TypedOperatorHandle<Function> find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

} // namespace mh::ops
