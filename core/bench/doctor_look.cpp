#include "core/bench/bench.hpp"
#include "core/bench/doctor.hpp"
#include "core/config.hpp"
#include "core/kernels/gemm.hpp"
#include "core/kernels/ops.hpp"
#include "core/kernels/processor.hpp"
#include "megahost/device.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <torch/headeronly/version.h>

#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace mh {

namespace {

namespace fs = std::filesystem;

/// A word of /proc/meminfo in bytes.
int64_t memory_info(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kibibytes = 0;
  std::string unit;
  while (file >> name >> kibibytes) {
    std::getline(file, unit);
    if (name == key + ":") {
      return kibibytes * 1024;
    }
  }
  return 0;
}

int64_t usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set)
                                                      : sysconf(_SC_NPROCESSORS_ONLN);
}

std::string first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

/// Display and 3D controllers of NVIDIA on the bus.
int64_t nvidia_cards() {
  int64_t cards = 0;
  std::error_code error;
  for (const auto& item : fs::directory_iterator("/sys/bus/pci/devices", error)) {
    cards += first_line(item.path() / "vendor") == "0x10de" &&
                     first_line(item.path() / "class").starts_with("0x03")
                 ? 1
                 : 0;
  }
  return cards;
}

/// Asks NVIDIA's management library, which comes with the driver and opens no device.
///
/// Source:  NVML API reference
void ask_driver(SeenMachine& ret_machine) {
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (nvml == nullptr) {
    return;
  }
  const auto call = [nvml](const char* name, auto... arguments) {
    using Function = int (*)(decltype(arguments)...);
    const auto function = reinterpret_cast<Function>(dlsym(nvml, name));
    return function != nullptr && function(arguments...) == 0;
  };
  if (!call("nvmlInit_v2")) {
    return;
  }
  std::array<char, 96> text{};
  if (call("nvmlSystemGetDriverVersion", text.data(), static_cast<unsigned>(text.size()))) {
    ret_machine.driver = text.data();
  }
  unsigned count = 0;
  call("nvmlDeviceGetCount_v2", &count);
  for (unsigned i = 0; i < count; ++i) {
    struct {
      unsigned long long total, free, used;
    } memory{};

    void* device = nullptr;
    if (call("nvmlDeviceGetHandleByIndex_v2", i, &device) &&
        call("nvmlDeviceGetName", device, text.data(), static_cast<unsigned>(text.size())) &&
        call("nvmlDeviceGetMemoryInfo", device, static_cast<void*>(&memory))) {
      ret_machine.gpus.push_back({text.data(), static_cast<int64_t>(memory.total)});
    }
  }
  call("nvmlShutdown");
}

/// The file of a library: next to LibTorch, in NVIDIA's wheels next to it, or where the linker
/// looks.
std::string find_library(const fs::path& torch, const std::string& name) {
  std::error_code error;
  std::vector<fs::path> folders{torch};
  for (const auto& item :
       fs::directory_iterator(torch.parent_path().parent_path() / "nvidia", error)) {
    folders.push_back(item.path() / "lib");
  }
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / name, error)) {
      return fs::weakly_canonical(folder / name, error).string();
    }
  }
  void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  const link_map* place = nullptr;
  if (library == nullptr || dlinfo(library, RTLD_DI_LINKMAP, &place) != 0) {
    return "";
  }
  return place->l_name;
}

} // namespace

SeenMachine look(const Host& host) {
  SeenMachine machine;
  machine.version = MH_VERSION;
  std::error_code error;
  machine.program = fs::canonical("/proc/self/exe", error).string();
  machine.processor = this_processor();
  machine.cpus = usable_cpus();
  machine.threads = at::get_num_threads();
  std::array<double, 1> load{};
  machine.load = getloadavg(load.data(), 1) == 1 ? load[0] : 0;
  machine.memory = memory_info("MemTotal");
  machine.memory_free = memory_info("MemAvailable");
  machine.disk = fs::current_path(error).string();
  machine.disk_free = static_cast<int64_t>(fs::space(".", error).available);
  machine.nvidia_cards = nvidia_cards();
  ask_driver(machine);
  machine.torch = TORCH_VERSION;
  machine.torch_variant = MH_TORCH_VARIANT;
  Dl_info where{};
  fs::path folder;
  if (dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &where) != 0) {
    folder = fs::weakly_canonical(where.dli_fname, error).parent_path();
  }
  machine.torch_folder = folder.string();
  for (const auto& [what, file] :
       {std::pair("LibTorch CUDA", "libtorch_cuda.so"),
        std::pair("CUDA runtime", "libcudart.so.13"),
        std::pair("cuBLAS", "libcublas.so.13"),
        std::pair("cuDNN", "libcudnn.so.9"),
        std::pair("NCCL", "libnccl.so.2")}) {
    machine.libraries.push_back({what, find_library(folder, file)});
  }
  machine.plugins = host.scan();
  return machine;
}

Speed measure(const Registry::Entry& entry) {
  Speed speed{.device = entry.name, .host = entry.planned.in_host_memory()};
  try {
    ops::ensure_registered();
    const at::NoGradGuard no_grad;
    const auto device = Registry::make<Device>(entry);
    speed.there = true;
    const auto shortest = [&](const auto& work) {
      return shortest_time([&] {
        work();
        device->synchronize();
      });
    };
    const auto product = [&](at::ScalarType type) {
      const int64_t side = speed.host ? 2048 : 8192;
      const at::Tensor a = at::ones({side, side}, at::dtype(type).device(device->device()));
      at::Tensor c = at::empty_like(a);
      const double flops = 2.0 * static_cast<double>(side * side * side);
      return flops / (libtorch_has_gemm(a) ? shortest([&] { at::mm_out(c, a, a); })
                                           : shortest([&] { c = ops::product(a, a); }));
    };
    speed.fp32 = product(at::kFloat);
    speed.bf16 = product(at::kBFloat16);
    const int64_t bytes = int64_t{speed.host ? 256 : 1024} << 20; // beyond any cache
    const at::Tensor from = at::ones({bytes}, at::dtype(at::kByte).device(device->device()));
    at::Tensor to = at::empty_like(from);
    speed.copy = 2.0 * static_cast<double>(bytes) / shortest([&] { to.copy_(from); });
  } catch (const std::exception& error) {
    speed.failed = error.what();
    speed.failed.resize(std::min(speed.failed.size(), speed.failed.find('\n')));
  }
  return speed;
}

} // namespace mh
