#pragma once
/// A training step that a device runs as one program, with weights and state in its own memory.

#include "core/step/step.hpp"
#include "core/step/weights.hpp"
#include "megahost/context.hpp"
#include "megahost/host.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace mh {

struct Session;

class DeviceStep {
public:
  virtual ~DeviceStep() = default;

  /// One step on the device, as `train_step`; clipping and weight decay are those of the run's
  /// recipe and of its weights. If a loss or the norm is no finite number nothing is updated, else
  /// it is, before `options.accept` hears of it.
  [[nodiscard]] virtual StepResult
  run(std::span<const Batch> microbatches, const StepOptions& options) = 0;

  /// The host's weights and state become those of the device; nothing happens where they are.
  virtual void fetch() = 0;

  /// The host's were written, by a checkpoint that was loaded: the device takes them.
  virtual void send() = 0;

  /// A line for the start of a run; empty: nothing to say.
  [[nodiscard]] virtual std::string note() const { return ""; }

  /// Bytes of the device's memory that a step takes; 0 before the first one.
  [[nodiscard]] virtual int64_t memory() const = 0;
};

/// Makes it for a session whose device runs programs; null for others.
using MakeDeviceStep = std::function<std::unique_ptr<DeviceStep>(Session&, Weights&, Host&)>;

} // namespace mh
