#pragma once
/// A training step that a device runs as programs, with weights and state in its own memory.

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

  /// The inputs of a step in addition to weights and state.
  struct Request {
    int64_t number = 1; ///< for errors: "step 7: ..."
    std::span<const Batch> microbatches{};
    StepOptions options{};
    double weight_decay = 0;
  };

  /// Gives the step after the one at hand, as it will be if that one updates; null: none is to begin
  /// yet. Its microbatches live until that step is over.
  using Next = std::function<const Request*()>;

  /// One step on the device, as `train_step`; clipping is that of the run's recipe. If a loss or the
  /// norm is no finite number nothing is updated, else it is, before `options.accept` hears of it.
  ///
  /// The device begins with the step that `next` gives before the results of this one are read: the
  /// call after this one is to ask for that step. After a step without an update nothing is begun.
  [[nodiscard]] virtual StepResult run(const Request& step, const Next& next) = 0;

  /// The host's weights and state become those of the device; nothing happens where they are. No
  /// step has been begun.
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
