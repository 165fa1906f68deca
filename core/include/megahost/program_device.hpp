#pragma once
/// Devices that run whole programs, where LibTorch has no operators: those of XLA (Trainium, TPUs).
/// A training step is given to them as a few modules of StableHLO; everything else of a run (initial
/// values, evaluation, checkpoints) computes in the host's memory. One process has several devices:
/// each is a rank of a module. Stages of a pipeline have modules of their own, on devices of their
/// own.
///
/// Source:  the StableHLO specification, openxla.org/stablehlo/spec

#include "megahost/device.hpp"
#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mh {

class MH_API ProgramDevice : public Device {
public:
  /// A tensor in the device's memory.
  class MH_API Buffer {
  public:
    virtual ~Buffer();

    /// `host`: contiguous, of its shape and type.
    virtual void copy_to(const at::Tensor& host) const = 0;
  };

  /// A module that is compiled for some of the devices, one for each of its ranks.
  class MH_API Program {
  public:
    virtual ~Program();

    /// Begins to run it on all of them: [rank][argument] -> [rank][result]. Results may be arguments
    /// of other programs at once; reading or copying one waits for it. An argument whose memory a
    /// result takes over (`tf.aliasing_output`) is not used again.
    ///
    /// Throws:  mh::Error with what a device says, also of an earlier run that has failed meanwhile
    [[nodiscard]] virtual std::vector<std::vector<std::unique_ptr<Buffer>>>
    run(const std::vector<std::vector<const Buffer*>>& arguments) = 0;

    /// Bytes of a device's memory that a run takes, arguments and results included; 0 if unknown.
    [[nodiscard]] virtual int64_t memory() const { return 0; }
  };

  /// The device that computes everything but the training step.
  [[nodiscard]] at::Device device() const override { return at::kCPU; }

  [[nodiscard]] const ProgramDevice* as_program_device() const final { return this; }

  /// Devices of this process.
  [[nodiscard]] virtual int64_t count() const = 0;

  /// Whether modules are to have no float64 and no integers of 64 bits: float32 and int32 stand in
  /// their place.
  [[nodiscard]] virtual bool narrow() const { return false; }

  /// Copies a tensor of the host to the memory of a device, 0 to count() - 1.
  [[nodiscard]] virtual std::unique_ptr<Buffer>
  upload(const at::Tensor& host, int64_t device) const = 0;

  /// Begins to copy a tensor to the memory of another device, 0 to count() - 1. The tensor may be
  /// freed before the copy has ended.
  [[nodiscard]] virtual std::unique_ptr<Buffer>
  copy(const Buffer& tensor, int64_t device) const = 0;

  /// Compiles a module of StableHLO; rank r of it runs on devices[r].
  ///
  /// Throws:  mh::Error with what the compiler says
  [[nodiscard]] virtual std::unique_ptr<Program>
  compile(const std::string& module, const std::vector<int64_t>& devices) const = 0;
};

} // namespace mh
