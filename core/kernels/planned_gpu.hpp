#pragma once

/// Memory that operators of ours take on a GPU while they run. Operators without a GPU kernel are
/// compositions there: in a plan for a GPU they are compositions on the Meta device, too, so that
/// it is counted.

namespace mh::ops {

class PlannedGpu {
public:
  /// While the object lives, this thread plans for a GPU if `on`.
  explicit PlannedGpu(bool on)
      : before_(active()) {
    active() = on;
  }

  ~PlannedGpu() { active() = before_; }

  PlannedGpu(const PlannedGpu&) = delete;
  PlannedGpu& operator=(const PlannedGpu&) = delete;

  [[nodiscard]] static bool& active() {
    thread_local bool active = false;
    return active;
  }

private:
  bool before_;
};

/// A form for the Meta device: shapes alone, or the plain form while that is wanted.
template <auto Shapes, auto Plain>
struct MetaForm;

template <
    class Result,
    class... Arguments,
    Result (*Shapes)(Arguments...),
    Result (*Plain)(Arguments...)>
struct MetaForm<Shapes, Plain> {
  static Result run(Arguments... arguments) {
    return (PlannedGpu::active() ? Plain : Shapes)(arguments...);
  }
};

} // namespace mh::ops
