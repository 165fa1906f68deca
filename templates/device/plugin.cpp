// The CPU under a name of its own, with a peak that you measured, so that a run's MFU is right.
// A plugin for other hardware returns its at::Device here; its kernels are dispatcher operators.

#define MH_PLUGIN_LICENSE "MIT"
#include <megahost/device.hpp>
#include <megahost/plugin.hpp>

#include <unistd.h>

namespace {

class @Name@ : public mh::Device {
public:
  struct Config {
    double peak = 0;
  };

  // Each field is an option, checked and documented.
  static void fields(mh::Fields<Config>& f) {
    f.add("peak", &Config::peak, "GEMMs in float32, in FLOP/s; 0 if unknown")
        .unit("FLOP/s")
        .at_least(0);
  }

  // It is planned as the CPU is: on this machine. Other hardware names a row of hardware.toml.
  static mh::PlannedDevice planned() { return {.kernels = mh::PlannedDevice::Kernels::cpu, .bf16 = false, .machine = ""}; }

  @Name@(const Config& config, const Args&)
      : peak_(config.peak) {}

  at::Device device() const override { return at::kCPU; }

  std::string summary() const override { return "@name@: the CPU, by a plugin"; }

  double peak_flops(at::ScalarType dtype) const override {
    return dtype == at::kFloat ? peak_ : 0;
  }

  int64_t memory() const override { return sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE); }

private:
  double peak_;
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with a device", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "the CPU, with a peak that you give");
})
