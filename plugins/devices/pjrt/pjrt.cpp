#define MH_PLUGIN_LICENSE "Apache-2.0"
// Devices of XLA by their PJRT plugins: the training step is compiled for them as one program.

#include "cache.hpp"
#include "client.hpp"

#include <megahost/plugin.hpp>
#include <megahost/program_device.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

/// "cpu_device_count=4" with its value's type: a whole number, true or false, else text.
///
/// Throws:  mh::Error if there is no "="
pjrt::ClientOption parse_option(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) {
    throw mh::Error(
        "device.options: \"" + text + "\" is not NAME=VALUE",
        "the plugin's documentation names its options, such as cpu_device_count=4"
    );
  }
  const std::string name = text.substr(0, equals), value = text.substr(equals + 1);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc() && end == value.data() + value.size()) {
    return {name, number};
  }
  return value == "true" || value == "false" ? pjrt::ClientOption{name, value == "true"}
                                             : pjrt::ClientOption{name, value};
}

class HeldBuffer : public mh::ProgramDevice::Buffer {
public:
  explicit HeldBuffer(pjrt::PjrtBuffer buffer)
      : buffer_(std::move(buffer)) {}

  void copy_to(const at::Tensor& host) const override { buffer_.copy_to(host); }

  [[nodiscard]] const pjrt::PjrtBuffer& held() const { return buffer_; }

private:
  pjrt::PjrtBuffer buffer_;
};

class DeviceProgram : public mh::ProgramDevice::Program {
public:
  explicit DeviceProgram(std::unique_ptr<pjrt::Executable> executable)
      : executable_(std::move(executable)) {}

  std::vector<std::vector<std::unique_ptr<mh::ProgramDevice::Buffer>>>
  run(const std::vector<std::vector<const mh::ProgramDevice::Buffer*>>& arguments) override {
    std::vector<std::vector<const pjrt::PjrtBuffer*>> buffers(arguments.size());
    for (size_t device = 0; device < arguments.size(); ++device) {
      for (const auto* argument : arguments[device]) {
        buffers[device].push_back(&static_cast<const HeldBuffer&>(*argument).held());
      }
    }
    std::vector<std::vector<std::unique_ptr<mh::ProgramDevice::Buffer>>> results(buffers.size());
    auto made = executable_->run(buffers);
    for (size_t device = 0; device < made.size(); ++device) {
      for (pjrt::PjrtBuffer& result : made[device]) {
        results[device].push_back(std::make_unique<HeldBuffer>(std::move(result)));
      }
    }
    return results;
  }

  int64_t memory() const override { return executable_->memory(); }

private:
  std::unique_ptr<pjrt::Executable> executable_;
};

class Pjrt : public mh::ProgramDevice {
public:
  struct Config {
    std::string plugin;
    std::vector<std::string> options;
    std::string cache;
    bool narrow = false;
    bool scan = false; // the core reads it of the recipe
  };

  static void fields(mh::Fields<Config>& f) {
    f.add(
         "plugin",
         &Config::plugin,
         "shared library that exports GetPjrtApi: libtpu.so, libneuronpjrt.so"
    )
        .path()
        .required();
    other_fields(f);
  }

  static void other_fields(mh::Fields<Config>& f) {
    f.add("options", &Config::options, "NAME=VALUE of the plugin, such as \"cpu_device_count=4\"");
    f.add(
         "cache",
         &Config::cache,
         "folder of compiled programs, which machines with the same devices may share; empty: none"
    )
        .path();
    f.add("narrow", &Config::narrow, "programs have float32 and int32 in place of 64 bits");
    f.add("scan", &Config::scan, "layers that are alike are a loop: shorter programs");
  }

  static mh::PlannedDevice planned() {
    return {.kernels = mh::PlannedDevice::Kernels::cpu, .bf16 = true, .machine = ""};
  }

  Pjrt(const Config& config, const Args& args)
      : client_(config.plugin, parse_options(config.options))
      , cache_(config.cache)
      , narrow_(config.narrow) {
    if (args.local_rank > 0) {
      throw mh::Error(
          "local rank " + std::to_string(args.local_rank) +
              " has no device: one process has all devices of " + config.plugin,
          "start one process on a machine, without --nproc; the degrees in `parallel` are its devices'"
      );
    }
  }

  std::string summary() const override {
    return "pjrt: " + std::to_string(client_.devices()) +
           (client_.devices() == 1 ? " device" : " devices") + " (" + client_.fingerprint() + ")";
  }

  double peak_flops(at::ScalarType) const override { return 0; }

  int64_t memory() const override { return 0; }

  int64_t count() const override { return static_cast<int64_t>(client_.devices()); }

  bool narrow() const override { return narrow_; }

  std::unique_ptr<Buffer> upload(const at::Tensor& host, int64_t device) const override {
    return std::make_unique<HeldBuffer>(client_.upload(host, static_cast<size_t>(device)));
  }

  std::unique_ptr<Buffer> copy(const Buffer& tensor, int64_t device) const override {
    const pjrt::PjrtBuffer& held = static_cast<const HeldBuffer&>(tensor).held();
    return std::make_unique<HeldBuffer>(client_.copy(held, static_cast<size_t>(device)));
  }

  std::unique_ptr<Program>
  compile(const std::string& module, const std::vector<int64_t>& devices) const override {
    const int64_t needed = *std::max_element(devices.begin(), devices.end()) + 1;
    if (needed > count()) {
      throw mh::Error(
          "the step needs " + std::to_string(needed) + " devices, and " + client_.library() +
              " has " + std::to_string(count()),
          "lower the degrees in `parallel`, or give it more devices by device.options"
      );
    }
    const std::vector<size_t> numbers(devices.begin(), devices.end());
    if (cache_.empty()) {
      return std::make_unique<DeviceProgram>(client_.compile(module, numbers));
    }
    const pjrt::ProgramCache cache(cache_);
    return std::make_unique<DeviceProgram>(cache.compile(client_, module, numbers));
  }

private:
  static std::vector<pjrt::ClientOption> parse_options(const std::vector<std::string>& texts) {
    std::vector<pjrt::ClientOption> options;
    for (const std::string& text : texts) {
      options.push_back(parse_option(text));
    }
    return options;
  }

  pjrt::PjrtClient client_;
  std::string cache_;
  bool narrow_;
};

// Devices that are known by name: the library that the system's loader finds, and options.

struct Neuron {
  static constexpr const char* kLibrary = "libneuronpjrt.so";
  static constexpr bool kNarrow = true; // it has no float64, and truncates int64
};

struct Tpu {
  static constexpr const char* kLibrary = "libtpu.so";
  static constexpr bool kNarrow = true; // both would be emulated
};

struct XlaCpu {
  static constexpr const char* kLibrary = "pjrt_c_api_cpu_plugin.so";
  static constexpr bool kNarrow = false;
};

/// PJRT with the library of a device.
template <class Known>
class KnownDevice : public Pjrt {
public:
  static void fields(mh::Fields<Config>& f) {
    f.add(
         "plugin",
         &Config::plugin,
         std::string("shared library that exports GetPjrtApi; empty: ") + Known::kLibrary +
             ", which the system's loader finds"
    )
        .path();
    other_fields(f);
  }

  KnownDevice(Config config, const Args& args)
      : Pjrt(completed(std::move(config)), args) {}

private:
  static Config completed(Config config) {
    if (config.plugin.empty()) {
      config.plugin = Known::kLibrary;
    }
    config.narrow = config.narrow || Known::kNarrow;
    return config;
  }
};

} // namespace

MH_PLUGIN(
    "org.megahost.pjrt",
    "0.1.0",
    "Devices of XLA by their PJRT plugins",
    [](mh::Registry& registry) {
      registry.add<Pjrt>("pjrt", "a device of XLA, which runs the training step as one program");
      registry.add<KnownDevice<Neuron>>("neuron", "AWS Trainium by pjrt: not run there by us");
      registry.add<KnownDevice<Tpu>>("tpu", "Google's TPUs by pjrt: not run there by us");
      registry.add<KnownDevice<XlaCpu>>("xla-cpu", "XLA's CPU plugin by pjrt, for trials");
    }
)
