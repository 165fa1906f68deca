#pragma once
/// Devices: where tensors live, how fast that is said to be, and what carries them between ranks.
/// How runs there are planned is said without a device: planned_device.hpp.

#include "megahost/export.hpp"
#include "megahost/kind.hpp"
#include "megahost/planned_device.hpp"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace c10d {
class Backend;
class Store;
} // namespace c10d

namespace mh {

class ProgramDevice;

class MH_API Device {
public:
  static constexpr Kind kKind = Kind::device;

  struct Args {
    int64_t local_rank = 0;
  };

  virtual ~Device();

  [[nodiscard]] virtual at::Device device() const = 0;
  /// One line for the start of a run: "cpu: AMD EPYC, 2 cores, AVX512-BF16".
  [[nodiscard]] virtual std::string summary() const = 0;
  /// Peak of dense GEMMs in FLOP/s; 0 if unknown.
  [[nodiscard]] virtual double peak_flops(at::ScalarType dtype) const = 0;
  /// Bytes of memory; 0 if unknown.
  [[nodiscard]] virtual int64_t memory() const = 0;

  /// Most bytes of it that this process has held at a time; 0 if unknown.
  [[nodiscard]] virtual int64_t peak_memory() const { return 0; }

  /// An identity that differs from that of all other devices, on other machines too; "": several
  /// ranks may share it.
  [[nodiscard]] virtual std::string identity() const { return ""; }

  /// This device, if it runs whole programs (program_device.hpp); else null.
  [[nodiscard]] virtual const ProgramDevice* as_program_device() const { return nullptr; }

  /// Waits until all work given to the device is done.
  virtual void synchronize() const {}

  /// The members of a group of ranks, who meet in the store.
  struct Members {
    c10::intrusive_ptr<c10d::Store> store;
    int rank = 0, size = 1;
    std::chrono::milliseconds timeout{};
  };

  /// The backend that carries the device's tensors between the members; null: Gloo does, as it does
  /// the host's. Called by all members, for all groups in one order.
  ///
  /// Throws:  c10::Error if they do not come within the timeout
  [[nodiscard]] virtual c10::intrusive_ptr<c10d::Backend> transport(const Members& members) const;
};

} // namespace mh
