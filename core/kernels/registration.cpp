#include "core/kernels/registration.hpp"

#include "core/kernels/meta.hpp"
#include "core/kernels/ops.hpp"

#include <mutex>

namespace mh::ops {

namespace {

torch::Library& library(const char* name, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, name, key, __FILE__, __LINE__);
}

} // namespace

void ensure_registered() {
  static std::once_flag once;
  std::call_once(once, [] {
    Libraries libraries{
        *new torch::Library(torch::Library::DEF, "megahost", std::nullopt, __FILE__, __LINE__),
        library("megahost", c10::DispatchKey::CPU),
        library("megahost", c10::DispatchKey::CUDA),
        library("megahost", c10::DispatchKey::Meta)};
    register_token_ops(libraries);
    register_attention(libraries);
    register_gemm(libraries);
    register_norm(libraries);
    register_activation(libraries);
    register_row_ops(libraries);
    register_update(libraries);
    register_fp8(libraries);
    register_meta_shapes(library("aten", c10::DispatchKey::Meta));
  });
}

} // namespace mh::ops
