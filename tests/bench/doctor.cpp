#include "core/bench/doctor.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace doctor_tests {

namespace {

/// A machine with nothing to complain of.
mh::SeenMachine healthy() {
  mh::SeenMachine machine;
  machine.version = "0.1.0";
  machine.program = "/usr/bin/megahost";
  machine.processor = {
      .name = "AMD EPYC",
      .level = "AVX512",
      .cores = 4,
      .avx2 = true,
      .avx512 = true,
      .avx512_bf16 = true};
  machine.cpus = machine.threads = 4;
  machine.load = 0.5;
  machine.memory = int64_t{32} << 30;
  machine.memory_free = int64_t{20} << 30;
  machine.disk = "/home/me";
  machine.disk_free = int64_t{100} << 30;
  machine.torch = "2.11.0";
  machine.torch_variant = "cu130";
  machine.libraries = {{"CUDA runtime", "/x/libcudart.so.13"}, {"NCCL", ""}};
  mh::FoundPlugin plugin;
  plugin.plugin.file = "models-gpt.so";
  plugin.offers = {{mh::Kind::architecture, "gpt", "a decoder"}};
  machine.plugins = {plugin};
  machine.speeds = {{.device = "cpu", .host = true, .fp32 = 350e9, .bf16 = 1.5e12, .copy = 40e9}};
  return machine;
}

/// The advice about a thing; empty if there is none.
std::string advice(const mh::SeenMachine& machine, const std::string& name) {
  for (const mh::Finding& finding : mh::judge(machine)) {
    if (finding.name == name && !finding.advice.empty()) {
      return finding.advice;
    }
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("a healthy machine gets no advice, in text and JSON") {
  const mh::SeenMachine machine = healthy();
  const auto findings = mh::judge(machine);
  for (const mh::Finding& finding : findings) {
    CAPTURE(finding.name);
    CHECK(finding.advice.empty());
    CHECK(!finding.value.empty());
  }
  const std::string text = mh::doctor_text(findings, {});
  CHECK(has(text, "AMD EPYC, 4 cores"));
  CHECK(has(text, "AVX2, AVX512, AVX512-BF16; kernels run at AVX512"));
  CHECK(has(text, "fp32 350 GFLOP/s, bf16 1500 GFLOP/s"));
  CHECK(has(text, "NCCL missing, for GPUs only"));
  CHECK(has(text, "All is well."));
  CHECK(std::count(text.begin(), text.end(), '\n') < 25);
  const auto json = nlohmann::json::parse(mh::doctor_json(machine, findings));
  CHECK(json["processor"]["avx512_bf16"] == true);
  CHECK(json["processor"]["amx_bf16"] == false);
  CHECK(json["speed"]["cpu"]["bf16_flops_per_s"] == 1.5e12);
  CHECK(json["cuda_libraries"]["NCCL"].is_null());
  CHECK(json["plugins"]["found"] == nlohmann::json({"architecture/gpt"}));
  CHECK(json["advice"].empty());
}

TEST_CASE("what is missing or slow gets one sentence each") {
  mh::SeenMachine machine = healthy();
  machine.threads = 16;
  CHECK(has(advice(machine, "threads"), "OMP_NUM_THREADS=4"));
  machine.threads = 1;
  CHECK(has(advice(machine, "threads"), "OMP_NUM_THREADS"));
  machine = healthy();
  machine.processor.avx2 = false;
  CHECK(has(advice(machine, "vectors"), "AVX2"));
  machine = healthy();
  machine.memory_free = 1 << 20;
  CHECK(has(advice(machine, "memory"), "batch.micro"));
  machine = healthy();
  machine.disk_free = 1 << 20;
  CHECK(has(advice(machine, "disk"), "checkpoint.dir"));
  machine = healthy();
  machine.plugins.clear();
  CHECK(has(advice(machine, "plugins"), "MEGAHOST_PLUGIN_PATH"));
  machine = healthy();
  machine.plugins.push_back({{.file = "old.so"}, {}, "old.so was built for LibTorch 2.9.0"});
  CHECK(has(advice(machine, "skipped"), "build it"));
  CHECK(has(mh::doctor_text(mh::judge(machine), {}), "1 thing could be better"));
  machine = healthy();
  machine.speeds[0].fp32 = 20e9;
  CHECK(has(advice(machine, "cpu GEMMs"), "power saving"));
  machine.load = 4;
  CHECK(has(advice(machine, "cpu GEMMs"), "load 4.0"));
  machine = healthy();
  machine.speeds[0].bf16 = 100e9;
  CHECK(has(advice(machine, "cpu GEMMs"), "precision = \"fp32\""));
  machine.processor.avx512_bf16 = false; // then precision "auto" takes fp32 anyway
  CHECK(advice(machine, "cpu GEMMs").empty());
  machine.processor.amx_bf16 = true;
  CHECK(machine.processor.bf16());
  CHECK(!advice(machine, "cpu GEMMs").empty());
}

TEST_CASE("GPUs: the driver, LibTorch's other half") {
  mh::SeenMachine machine = healthy();
  machine.nvidia_cards = 2;
  CHECK(has(advice(machine, "GPUs"), "driver"));
  machine.driver = "535.54";
  machine.gpus = {{"NVIDIA H200", int64_t{141} << 30}};
  CHECK(has(advice(machine, "driver"), "580"));
  machine.driver = "580.65";
  CHECK(advice(machine, "driver").empty());
  CHECK(has(advice(machine, "CUDA"), ".deps/python"));
  machine.libraries[1].found = "/x/libnccl.so.2";
  CHECK(advice(machine, "CUDA").empty());
  machine.speeds.push_back({.device = "cuda", .failed = "no device"});
  CHECK(advice(machine, "cuda") == "no device");
}

} // namespace doctor_tests
