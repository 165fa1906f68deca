#define MH_PLUGIN_LICENSE "Apache-2.0"
// Devices of XLA by their PJRT plugins: the training step is compiled for them as one program.

#include "client.hpp"

#include <megahost/plugin.hpp>
#include <megahost/program_device.hpp>

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

  std::vector<std::unique_ptr<mh::ProgramDevice::Buffer>>
  run(const std::vector<const mh::ProgramDevice::Buffer*>& arguments) override {
    std::vector<const pjrt::PjrtBuffer*> buffers;
    for (const auto* argument : arguments) {
      buffers.push_back(&static_cast<const HeldBuffer&>(*argument).held());
    }
    std::vector<std::unique_ptr<mh::ProgramDevice::Buffer>> results;
    auto made = executable_->run({buffers});
    for (pjrt::PjrtBuffer& result : made.front()) {
      results.push_back(std::make_unique<HeldBuffer>(std::move(result)));
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
  };

  static void fields(mh::Fields<Config>& f) {
    f.add(
         "plugin",
         &Config::plugin,
         "shared library that exports GetPjrtApi: libtpu.so, libneuronpjrt.so"
    )
        .path()
        .required();
    f.add("options", &Config::options, "NAME=VALUE of the plugin, such as \"cpu_device_count=4\"");
  }

  static mh::PlannedDevice planned() {
    return {.kernels = mh::PlannedDevice::Kernels::cpu, .bf16 = true, .machine = ""};
  }

  Pjrt(const Config& config, const Args& args)
      : client_(config.plugin, parse_options(config.options))
      , index_(static_cast<size_t>(args.local_rank)) {
    if (index_ >= client_.devices()) {
      throw mh::Error(
          "local rank " + std::to_string(index_) + " has no device: " + config.plugin + " has " +
              std::to_string(client_.devices()),
          "start as many ranks on a machine as it has devices"
      );
    }
  }

  std::string summary() const override {
    return "pjrt: device " + std::to_string(index_) + " of " + std::to_string(client_.devices()) +
           " (" + client_.fingerprint() + ")";
  }

  double peak_flops(at::ScalarType) const override { return 0; }

  int64_t memory() const override { return 0; }

  std::unique_ptr<Buffer> upload(const at::Tensor& host) const override {
    return std::make_unique<HeldBuffer>(client_.upload(host, index_));
  }

  std::unique_ptr<Program> compile(const std::string& module) const override {
    return std::make_unique<DeviceProgram>(client_.compile(module, {index_}));
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
  size_t index_;
};

} // namespace

MH_PLUGIN(
    "org.megahost.pjrt",
    "0.1.0",
    "Devices of XLA by their PJRT plugins",
    [](mh::Registry& registry) {
      registry.add<Pjrt>("pjrt", "a device of XLA, which runs the training step as one program");
    }
)
