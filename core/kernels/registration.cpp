#include "core/kernels/registration.hpp"

#include "core/kernels/ops.hpp"
#include "core/meta/shapes.hpp"

#include <memory>
#include <mutex>
#include <vector>

namespace mh::ops {

torch::Library&
lasting_library(torch::Library::Kind kind, const char* name, std::optional<c10::DispatchKey> key) {
  static auto* const kKept = new std::vector<std::unique_ptr<torch::Library>>;
  kKept->push_back(std::make_unique<torch::Library>(kind, name, key, __FILE__, __LINE__));
  return *kKept->back();
}

void ensure_registered() {
  static std::once_flag once;
  std::call_once(once, [] {
    Libraries libraries{
        lasting_library(torch::Library::DEF, "megahost", std::nullopt),
        lasting_library(torch::Library::IMPL, "megahost", c10::DispatchKey::CPU),
        lasting_library(torch::Library::IMPL, "megahost", c10::DispatchKey::CUDA),
        lasting_library(
            torch::Library::IMPL, "megahost", c10::DispatchKey::CompositeExplicitAutograd
        ),
        lasting_library(torch::Library::IMPL, "megahost", c10::DispatchKey::Meta)};
    register_token_ops(libraries);
    register_attention(libraries);
    register_gemm(libraries);
    register_norm(libraries);
    register_activation(libraries);
    register_row_ops(libraries);
    register_update(libraries);
    register_fp8(libraries);
    register_experts(libraries);
    torch::Library& aten = lasting_library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta);
    register_meta_shapes(aten);
    register_meta_elementwise(aten);
  });
}

} // namespace mh::ops
