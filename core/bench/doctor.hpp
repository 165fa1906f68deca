#pragma once
/// The checks of `megahost doctor`, and their texts. Looking needs LibTorch and the machine
/// (look.cpp); judging and printing need neither (judge.cpp), so that tests can make up machines.

#include "core/draw/terminal.hpp"
#include "core/kernels/processor.hpp"
#include "megahost/host.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// A graphics card of NVIDIA.
struct Gpu {
  std::string name;
  int64_t memory = 0; ///< bytes
};

/// A shared library that a GPU needs.
struct NamedLibrary {
  std::string what;  ///< "NCCL"
  std::string found; ///< its file; empty if it is not there
};

/// Measured speeds of one device.
struct Speed {
  std::string device;        ///< its name: "cpu", "cuda"
  bool host = false;         ///< its tensors lie in the host's memory
  bool there = false;        ///< this machine has it
  double fp32 = 0, bf16 = 0; ///< rates of GEMMs, in FLOP/s
  double copy = 0;           ///< rate of memory, in bytes per second, read and written
  std::string failed{};      ///< why nothing could be measured
};

struct SeenMachine {
  std::string version; ///< version of megahost
  std::string program;
  Processor processor;
  int64_t cpus = 0;                    ///< logical ones that this process may use
  int64_t threads = 0;                 ///< threads of LibTorch's operations
  double load = 0;                     ///< programs that ran or waited over the last minute
  int64_t memory = 0, memory_free = 0; ///< bytes
  std::string disk;                    ///< the folder whose disk is meant
  int64_t disk_free = 0;               ///< bytes
  int64_t nvidia_cards = 0;            ///< on the bus, with a driver or without
  std::string driver;                  ///< version of NVIDIA's driver; empty: none
  std::vector<Gpu> gpus;
  std::string torch, torch_variant, torch_folder; ///< "2.11.0", "cu130"
  std::vector<NamedLibrary> libraries;            ///< CUDA libraries and NCCL
  std::vector<FoundPlugin> plugins;
  std::vector<Speed> speeds;
};

/// One line of the report.
struct Finding {
  std::string group;  ///< "machine"
  std::string name;   ///< "memory"
  std::string value;  ///< "25.3 GB, 19.0 GB free"
  std::string advice; ///< a remedy; empty: none
};

/// This machine, all but the speeds.
[[nodiscard]] SeenMachine look(const Host& host);

/// Products of large matrices and copies, about a second each.
[[nodiscard]] Speed measure(const Registry::Entry& device);

[[nodiscard]] std::vector<Finding> judge(const SeenMachine& machine);

/// The findings as people read them in ten seconds.
[[nodiscard]] std::string
doctor_text(const std::vector<Finding>& findings, const Terminal& terminal);

/// The findings as programs read them: numbers as they are, and the advice.
[[nodiscard]] std::string
doctor_json(const SeenMachine& machine, const std::vector<Finding>& findings);

} // namespace mh
