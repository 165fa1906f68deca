#include "core/base/text.hpp"
#include "core/bench/doctor.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>

namespace mh {

namespace {

constexpr double kGiga = 1e9;

/// The least throughput of a thread of such a processor, in fp32 FLOP/s: a third of what cores of
/// the last ten years reach.
constexpr double kSlowAvx512 = 25e9, kSlowAvx2 = 12e9;
constexpr double kSlowCopy = 4e9; ///< bytes per second, read and written

std::string gigabytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), bytes < 10 * kGiga ? "%.1f GB" : "%.0f GB", bytes / kGiga);
  return text;
}

std::string rate(double per_second, const char* unit) {
  char text[48];
  const bool tera = per_second >= 1e13;
  std::snprintf(
      text, sizeof(text), "%.0f %s%s", per_second / (tera ? 1e12 : kGiga), tera ? "T" : "G", unit
  );
  return text;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

class Judge {
public:
  explicit Judge(const SeenMachine& machine)
      : machine_(machine) {}

  std::vector<Finding> run() {
    group_ = "machine";
    processor();
    memory();
    gpus();
    group_ = "software";
    software();
    plugins();
    group_ = "speed";
    for (const Speed& speed : machine_.speeds) {
      speed_of(speed);
    }
    return std::move(findings_);
  }

private:
  void add(std::string name, std::string value, std::string advice = "") {
    findings_.push_back({group_, std::move(name), std::move(value), std::move(advice)});
  }

  void processor() {
    const Processor& cpu = machine_.processor;
    std::string features;
    for (const auto& [has, word] :
         {std::pair(cpu.avx2, "AVX2"),
          std::pair(cpu.avx512, "AVX512"),
          std::pair(cpu.avx512_bf16, "AVX512-BF16"),
          std::pair(cpu.amx_bf16, "AMX")}) {
      features += has ? (features.empty() ? "" : ", ") + std::string(word) : "";
    }
    add("processor",
        cpu.name + ", " + std::to_string(cpu.cores) + (cpu.cores == 1 ? " core" : " cores"));
    add("vectors",
        (features.empty() ? "none of AVX2, AVX512, AMX" : features) + "; kernels run at " +
            cpu.level,
        cpu.avx2 ? "" : "LibTorch's fast kernels need AVX2: train on another machine");
    add("bf16",
        cpu.bf16() ? "multiplied in hardware"
                   : "not multiplied in hardware: precision \"auto\" takes fp32");
    std::string advice;
    if (machine_.threads > machine_.cpus) {
      advice = "more threads than processors wait for one another: set OMP_NUM_THREADS=" +
               std::to_string(machine_.cpus);
    } else if (machine_.threads < std::min(machine_.cpus, cpu.cores)) {
      advice = "some cores stay idle: unset OMP_NUM_THREADS, or set it to " +
               std::to_string(std::min(machine_.cpus, cpu.cores));
    }
    add("threads",
        std::to_string(machine_.threads) + " on " + std::to_string(machine_.cpus) +
            " processors, load " + number(machine_.load),
        advice);
  }

  void memory() {
    add("memory",
        gigabytes(static_cast<double>(machine_.memory)) + ", " +
            gigabytes(static_cast<double>(machine_.memory_free)) + " free",
        machine_.memory_free < int64_t{2} << 30
            ? "little is free: close other programs, or lower batch.micro and model.seq_length"
            : "");
    add("disk",
        gigabytes(static_cast<double>(machine_.disk_free)) + " free in " + machine_.disk,
        machine_.disk_free < int64_t{5} << 30
            ? "checkpoints may not fit: free some space, or name another disk in checkpoint.dir"
            : "");
  }

  void gpus() {
    if (machine_.gpus.empty()) {
      add("GPUs",
          machine_.nvidia_cards == 0 ? "none"
                                     : std::to_string(machine_.nvidia_cards) + " without a driver",
          machine_.nvidia_cards == 0 ? "" : "install NVIDIA's driver, 580 or newer");
      return;
    }
    for (const Gpu& gpu : machine_.gpus) {
      add(&gpu == &machine_.gpus.front() ? "GPUs" : "",
          gpu.name + ", " + gigabytes(static_cast<double>(gpu.memory)));
    }
    // CUDA 13 needs driver 580 (CUDA 13.0 release notes, table 3).
    const bool old =
        machine_.torch_variant.starts_with("cu13") && std::atoi(machine_.driver.c_str()) < 580;
    add("driver",
        machine_.driver.empty() ? "unknown" : machine_.driver,
        old ? "LibTorch " + machine_.torch_variant + " needs NVIDIA's driver 580 or newer" : "");
  }

  void software() {
    add("megahost", machine_.version + ", " + machine_.program);
    add("LibTorch", machine_.torch + " (" + machine_.torch_variant + "), " + machine_.torch_folder);
    std::vector<std::string> there, missing;
    for (const NamedLibrary& library : machine_.libraries) {
      (library.found.empty() ? missing : there).push_back(library.what);
    }
    const bool needed = !machine_.gpus.empty() && !missing.empty();
    add("CUDA",
        (there.empty() ? "" : join(there) + " found") +
            (there.empty() || missing.empty() ? "" : "; ") +
            (missing.empty() ? "" : join(missing) + " missing") +
            (missing.empty() || needed ? "" : ", for GPUs only"),
        needed ? "delete .deps/python and start ./megahost again: it installs the CUDA libraries "
                 "where "
                 "there is a GPU"
               : "");
  }

  void plugins() {
    size_t offers = 0, files = 0;
    for (const FoundPlugin& plugin : machine_.plugins) {
      offers += plugin.offers.size();
      files += plugin.skipped.empty() && !plugin.plugin.file.empty() ? 1 : 0;
    }
    add("plugins",
        std::to_string(offers) + " in " + std::to_string(files) + " files",
        files == 0 ? "build megahost again, or set MEGAHOST_PLUGIN_PATH: no plugin file was found"
                   : "");
    for (const FoundPlugin& plugin : machine_.plugins) {
      if (!plugin.skipped.empty()) {
        add("skipped", plugin.skipped, "build it against this megahost, or remove the file");
      }
    }
  }

  void speed_of(const Speed& speed) {
    if (!speed.failed.empty()) {
      add(speed.device, "not measured", speed.failed);
      return;
    }
    const bool cpu = speed.host;
    const double expected = static_cast<double>(machine_.threads) *
                            (machine_.processor.avx512 ? kSlowAvx512 : kSlowAvx2);
    const bool busy = machine_.load > 0.6 * static_cast<double>(machine_.cpus);
    const std::string slow = busy ? "slow: other programs take their part (load " +
                                        number(machine_.load) + "), measure again without them"
                                  : "slow for such a processor: look for power saving, or a limit "
                                    "on the container's processors";
    add(speed.device + " GEMMs",
        "fp32 " + rate(speed.fp32, "FLOP/s") + ", bf16 " + rate(speed.bf16, "FLOP/s"),
        cpu && speed.fp32 < expected ? slow
        : cpu && machine_.processor.bf16() && speed.bf16 < speed.fp32
            ? "bf16 is slower than fp32 here: set precision = \"fp32\""
            : "");
    add(speed.device + " copies",
        rate(speed.copy, "B/s") + " read and written",
        cpu && speed.copy < kSlowCopy ? slow : "");
  }

  const SeenMachine& machine_;
  std::string group_;
  std::vector<Finding> findings_;
};

} // namespace

std::vector<Finding> judge(const SeenMachine& machine) {
  return Judge(machine).run();
}

std::string doctor_text(const std::vector<Finding>& findings, const Terminal& terminal) {
  size_t width = 0;
  for (const Finding& finding : findings) {
    width = std::max(width, finding.name.size());
  }
  std::string text, group;
  size_t advice = 0;
  for (const Finding& finding : findings) {
    if (finding.group != group) {
      text += (group.empty() ? "" : "\n") + terminal.paint(Paint::bold, finding.group) + "\n";
      group = finding.group;
    }
    const bool fine = finding.advice.empty();
    text += (fine ? "  " : terminal.paint(Paint::yellow, "! ")) + finding.name +
            std::string(width - finding.name.size() + 2, ' ') + finding.value + "\n";
    if (!fine) {
      text += std::string(width + 4, ' ') + terminal.paint(Paint::yellow, finding.advice) + "\n";
      ++advice;
    }
  }
  return text + "\n" +
         (advice == 0   ? terminal.paint(Paint::green, "All is well.")
          : advice == 1 ? "1 thing could be better, marked with !."
                        : std::to_string(advice) + " things could be better, marked with !.") +
         "\n";
}

std::string doctor_json(const SeenMachine& machine, const std::vector<Finding>& findings) {
  using Json = nlohmann::ordered_json;
  Json gpus = Json::array(), libraries = Json::object(), found = Json::array(),
       skipped = Json::array(), speeds = Json::object(), advice = Json::array();
  for (const Gpu& gpu : machine.gpus) {
    gpus.push_back({{"name", gpu.name}, {"memory_bytes", gpu.memory}});
  }
  for (const NamedLibrary& library : machine.libraries) {
    libraries[library.what] = library.found.empty() ? Json(nullptr) : Json(library.found);
  }
  for (const FoundPlugin& plugin : machine.plugins) {
    if (!plugin.skipped.empty()) {
      skipped.push_back({{"file", plugin.plugin.file.string()}, {"reason", plugin.skipped}});
    }
    for (const auto& offer : plugin.offers) {
      found.push_back(std::string(info(offer.kind).name) + "/" + offer.name);
    }
  }
  for (const Speed& speed : machine.speeds) {
    speeds[speed.device] = speed.failed.empty() ? Json{{"fp32_flops_per_s", speed.fp32},
                                                       {"bf16_flops_per_s", speed.bf16},
                                                       {"copy_bytes_per_s", speed.copy}}
                                                : Json{{"failed", speed.failed}};
  }
  for (const Finding& finding : findings) {
    if (!finding.advice.empty()) {
      advice.push_back(
          {{"about", finding.name}, {"found", finding.value}, {"advice", finding.advice}}
      );
    }
  }
  const Processor& cpu = machine.processor;
  const Json json{
      {"megahost", {{"version", machine.version}, {"program", machine.program}}},
      {"processor",
       {{"name", cpu.name},
        {"cores", cpu.cores},
        {"usable", machine.cpus},
        {"threads", machine.threads},
        {"load", machine.load},
        {"level", cpu.level},
        {"avx2", cpu.avx2},
        {"avx512", cpu.avx512},
        {"avx512_bf16", cpu.avx512_bf16},
        {"amx_bf16", cpu.amx_bf16}}},
      {"memory", {{"bytes", machine.memory}, {"free_bytes", machine.memory_free}}},
      {"disk", {{"folder", machine.disk}, {"free_bytes", machine.disk_free}}},
      {"nvidia", {{"cards", machine.nvidia_cards}, {"driver", machine.driver}, {"gpus", gpus}}},
      {"libtorch",
       {{"version", machine.torch},
        {"variant", machine.torch_variant},
        {"folder", machine.torch_folder}}},
      {"cuda_libraries", libraries},
      {"plugins", {{"found", found}, {"skipped", skipped}}},
      {"speed", speeds},
      {"advice", advice}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

} // namespace mh
