#pragma once
/// Devices: where tensors live and how fast that is said to be.

#include "megahost/export.hpp"
#include "megahost/kind.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace mh {

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
  /// Dense matrix-product peak in FLOP/s; 0 if unknown.
  [[nodiscard]] virtual double peak_flops(at::ScalarType dtype) const = 0;
  /// Bytes of memory; 0 if unknown.
  [[nodiscard]] virtual int64_t memory() const = 0;
  /// Most bytes of it that this process has held at a time; 0 if unknown.
  [[nodiscard]] virtual int64_t peak_memory() const { return 0; }

  /// Waits until all work given to the device is done.
  virtual void synchronize() const {}
};

} // namespace mh
