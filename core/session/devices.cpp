#include "core/session/devices.hpp"

#include "core/base/number_text.hpp"
#include "core/cuda/library.hpp"
#include "core/kernels/processor.hpp"
#include "core/memory/caching_allocator.hpp"
#include "core/mesh/nccl.hpp"
#include "megahost/device.hpp"
#include "megahost/error.hpp"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace mh {
namespace {

class Cpu : public Device {
public:
  struct Config {};

  static void fields(Fields<Config>&) {}

  static PlannedDevice planned() {
    return {.kernels = PlannedDevice::Kernels::cpu, .bf16 = false, .machine = ""};
  }

  Cpu(const Config&, const Args&) { install_caching_allocator(); }

  [[nodiscard]] at::Device device() const override { return at::kCPU; }

  [[nodiscard]] std::string summary() const override {
    const Processor& cpu = this_processor();
    return "cpu: " + cpu.name + ", " + counted(cpu.cores, "core") + ", " +
           counted(at::get_num_threads(), "thread") + ", " + cpu.level +
           (cpu.avx512_bf16 ? " BF16" : "") + (cpu.amx_bf16 ? " AMX" : "");
  }

  [[nodiscard]] double peak_flops(at::ScalarType) const override { return 0; }

  [[nodiscard]] int64_t memory() const override {
    return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  }

  // Not getrusage: its peak may be that of the program which started this one.
  [[nodiscard]] int64_t peak_memory() const override {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) {
        return std::atoll(line.c_str() + 6) * 1024;
      }
    }
    return 0;
  }
};

/// Dense peaks without sparsity, in TFLOP/s, from NVIDIA's data sheets.
struct GpuPeak {
  std::string_view name; ///< start of the device's name
  double bf16, fp32;
};

constexpr std::array<GpuPeak, 8> kGpuPeaks{{
    {"NVIDIA B200", 2250, 75},
    {"NVIDIA H200", 989, 67},
    {"NVIDIA H100 PCIe", 756, 51},
    {"NVIDIA H100", 989, 67},
    {"NVIDIA A100", 312, 19.5},
    {"NVIDIA L40S", 362, 91.6},
    {"NVIDIA L4", 121, 30.3},
    {"NVIDIA GeForce RTX 4090", 165, 82.6},
}};

class Cuda : public Device {
public:
  struct Config {};

  static void fields(Fields<Config>&) {}

  static PlannedDevice planned() {
    return {.kernels = PlannedDevice::Kernels::cuda, .machine = "h100"};
  }

  Cuda(const Config&, const Args& args) {
    const std::string hint =
        "set device = \"cpu\", or install LibTorch's CUDA packages and a driver";
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      throw Error(std::string("device \"cuda\" needs LibTorch's CUDA library: ") + dlerror(), hint);
    }
    // LibTorch looks once what it has, and autograd counts devices in its first backward pass.
    MH_ASSERT(
        at::globalContext().hasCUDART(), "LibTorch was asked for GPUs before its CUDA half was open"
    );
    const int count = at::detail::getCUDAHooks().getNumGPUs();
    if (count == 0) {
      throw Error("device \"cuda\" needs a GPU, and LibTorch sees none on this machine", hint);
    }
    // A launcher may show each process one GPU of its own; `identity` tells whether two share one.
    index_ = static_cast<at::DeviceIndex>(args.local_rank % count);
    at::globalContext().lazyInitDevice(at::kCUDA);
    at::accelerator::setDeviceIndex(index_);
    name_ = ask_name();
  }

  [[nodiscard]] at::Device device() const override { return {at::kCUDA, index_}; }

  [[nodiscard]] std::string summary() const override {
    std::array<char, 32> memory{};
    std::snprintf(
        memory.data(), memory.size(), "%.0f GB", static_cast<double>(this->memory()) / 1e9
    );
    const char* kernels = cuda_kernels() != nullptr
                              ? ""
                              : "; LibTorch's kernels alone, as libmegahost-cuda.so is not here";
    return "cuda:" + std::to_string(index_) + ": " + name_ + ", " + memory.data() + kernels;
  }

  [[nodiscard]] double peak_flops(at::ScalarType dtype) const override {
    for (const auto& peak : kGpuPeaks) {
      if (name_.starts_with(peak.name)) {
        return (dtype == at::kFloat ? peak.fp32 : peak.bf16) * 1e12;
      }
    }
    return 0;
  }

  [[nodiscard]] int64_t memory() const override {
    return static_cast<int64_t>(at::accelerator::getMemoryInfo(index_).second);
  }

  [[nodiscard]] int64_t peak_memory() const override {
    using c10::CachingAllocator::StatType;
    const auto stats = at::accelerator::getDeviceStats(index_);
    return stats.allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)].peak;
  }

  void synchronize() const override { at::accelerator::synchronizeDevice(index_); }

  [[nodiscard]] std::string identity() const override {
    std::array<unsigned char, 16> uuid{};
    using GetUuid = int (*)(void*, int);
    const auto get = reinterpret_cast<GetUuid>(ask_driver("cuDeviceGetUuid_v2"));
    if (get == nullptr || get(uuid.data(), index_) != 0) {
      return "";
    }
    std::string text = "GPU-";
    for (const unsigned char byte : uuid) {
      std::array<char, 3> digits{};
      std::snprintf(digits.data(), digits.size(), "%02x", byte);
      text += digits.data();
    }
    return text;
  }

  [[nodiscard]] c10::intrusive_ptr<c10d::Backend> transport(const Members& members) const override {
    return make_nccl(members.store, members.rank, members.size, members.timeout);
  }

private:
  // LibTorch hands out names only through CUDA's own headers; the driver is asked directly.
  static void* ask_driver(const char* function) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver == nullptr ? nullptr : dlsym(driver, function);
  }

  [[nodiscard]] std::string ask_name() const {
    std::array<char, 256> name{};
    using GetName = int (*)(char*, int, int);
    const auto get = reinterpret_cast<GetName>(ask_driver("cuDeviceGetName"));
    if (get == nullptr || get(name.data(), static_cast<int>(name.size()), index_) != 0) {
      return "GPU";
    }
    return name.data();
  }

  at::DeviceIndex index_ = 0;
  std::string name_;
};

} // namespace

Registry builtin_devices() {
  Registry registry(PluginInfo{
      .id = "org.megahost.devices",
      .version = "0.1.0",
      .license = "Apache-2.0",
      .summary = "built-in devices",
      .abi_tag = "",
      .built_with = "",
      .file = {}});
  registry.add<Cpu>("cpu", "this machine's processor");
  registry.add<Cuda>("cuda", "an NVIDIA GPU through LibTorch");
  return registry;
}

} // namespace mh
