#pragma once
/// XLA's CPU plugin for tests, where it is (environment.sh).

#include "plugins/devices/pjrt/client.hpp"

#include <ATen/ops/empty_like.h>

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace mh {

/// Four devices; null where the plugin is not there, which is said.
inline const pjrt::PjrtClient* xla_cpu() {
  static const std::unique_ptr<pjrt::PjrtClient> client = [] {
    const char* library = std::getenv("MEGAHOST_XLA_CPU");
    if (library == nullptr || !std::filesystem::exists(library)) {
      std::puts("XLA's CPU plugin is not there (./megahost test program fetches it): nothing runs");
      return std::unique_ptr<pjrt::PjrtClient>();
    }
    return std::make_unique<pjrt::PjrtClient>(
        library, std::vector<pjrt::ClientOption>{{"cpu_device_count", int64_t{4}}}
    );
  }();
  return client.get();
}

/// Runs a module on it; `like`: what the results are like.
inline std::vector<at::Tensor> run_on_xla(
    const std::string& module,
    const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& like
) {
  const auto& client = *xla_cpu();
  const auto executable = client.compile(module, {0});
  std::vector<pjrt::PjrtBuffer> buffers;
  std::vector<const pjrt::PjrtBuffer*> arguments;
  buffers.reserve(inputs.size());
  for (const at::Tensor& input : inputs) {
    arguments.push_back(&buffers.emplace_back(client.upload(input, 0)));
  }
  const auto all = executable->run({arguments});
  const auto& results = all.front();
  REQUIRE(results.size() == like.size());
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < results.size(); ++i) {
    tensors.push_back(at::empty_like(like[i], at::MemoryFormat::Contiguous));
    results[i].copy_to(tensors.back());
  }
  return tensors;
}

} // namespace mh
