#pragma once
/// The work of a step, recorded while it runs: GEMMs by shape, memory-bound operations,
/// collectives, and the memory of its tensors if that is on the Meta device. On other devices the
/// duration of each is recorded, too.
///
/// ```cpp
/// mh::PlanRecorder recorder;
/// mh::Mesh mesh = mh::alone(shape, rank, {.listener = &recorder});
/// // a step
/// const auto& events = recorder.events();
/// ```

#include "core/kernels/planned_gpu.hpp"
#include "core/memory/counting_allocator.hpp"
#include "core/mesh/silent.hpp"

#include <ATen/record_function.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mh {

/// One thing that a rank does.
struct PlanEvent {
  enum class Kind : uint8_t {
    product,   ///< batch GEMMs [m, k] x [k, n]
    attention, ///< a fused kernel of flops
    memory,    ///< reads and writes bytes
    start,     ///< a collective begins
    wait,      ///< and is waited for
  };
  Kind kind = Kind::memory;
  at::ScalarType type = at::kFloat; ///< dtype of the operands
  const char* name = "";            ///< name of the operator
  double flops = 0;
  double bytes = 0;   ///< read and written
  double chained = 0; ///< bytes that the operations before made for this one only: they would
                      ///< neither be written nor read if one kernel did it all
  int64_t batch = 1, m = 0, n = 0, k = 0; ///< attention has heads, queries, keys, their size; an
                                          ///< update has its parameters in m
  bool backward = false;                  ///< attention or collective of backward, not recomputed
  bool dropout = false;                   ///< attention has dropout
  double seconds = 0;                     ///< seconds that it took when it was recorded
  size_t collective = 0; ///< index into `PlanRecorder::collectives` for start and wait

  /// FLOPs of the GEMMs that the step asks for, not of a kernel's way to do them: attention's
  /// backward pass has four, and a fifth that makes the scores again in it is not counted.
  [[nodiscard]] double executed() const {
    const bool fused = kind == Kind::attention && backward;
    return kind == Kind::memory ? 0 : fused ? flops * 4 / 5 : flops;
  }
};

/// One collective or transfer, as this rank began it.
struct PlannedCollective {
  const char* name = ""; ///< "all-reduce", "send", ...
  std::shared_ptr<const SilentGroup> group;
  std::vector<int64_t> sizes; ///< sizes of its input
  at::ScalarType type = at::kFloat;
  int64_t bytes = 0;       ///< bytes of its input
  int64_t peer = -1;       ///< the other member of a transfer; -1: no transfer
  bool host = false;       ///< its input is in host memory: words that ranks agree on
  int64_t handed_over = 0; ///< bytes of a send's tensor: in use until it is over

  [[nodiscard]] bool is(std::string_view what) const { return what == name; }
};

/// Records what the calling thread does while the object lives; one at a time.
class PlanRecorder : public CollectiveListener {
public:
  /// `target`: the device that a plan is for; what its kernels take is counted, see MetaMemory.
  explicit PlanRecorder(std::optional<at::DeviceType> target = std::nullopt);
  ~PlanRecorder() override;
  PlanRecorder(const PlanRecorder&) = delete;
  PlanRecorder& operator=(const PlanRecorder&) = delete;

  [[nodiscard]] MetaMemory& memory() { return memory_; }

  [[nodiscard]] const std::vector<PlanEvent>& events() const { return events_; }

  [[nodiscard]] const std::vector<PlannedCollective>& collectives() const { return collectives_; }

  /// Scopes that the step entered ("optimizer"), each with the number of events before it.
  struct Scope {
    std::string name;
    size_t event;
  };

  [[nodiscard]] const std::vector<Scope>& scopes() const { return scopes_; }

  int64_t
  began(const SilentGroup& group, const char* name, const at::Tensor& input, int64_t peer) override;
  void waited(int64_t number) override;

private:
  struct Frame;
  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function);
  static void leave(const at::RecordFunction& function, at::ObserverContext* context);
  void begin(const at::RecordFunction& function);
  void end(const at::RecordFunction& function);
  static void take_storages(Frame& frame, c10::ArrayRef<const c10::IValue> inputs);
  void chain(const Frame& frame, PlanEvent& event, const at::RecordFunction& function);

  MetaMemory memory_;
  bool workspaces_; // whether a CPU's workspaces are counted
  ops::PlannedGpu gpu_;
  at::CallbackHandle handle_;
  std::vector<Frame> frames_; // operators that are running
  /// Results of the element-wise operations since the last GEMM.
  std::vector<std::pair<const void*, double>> made_;
  std::vector<PlanEvent> events_;
  std::vector<PlannedCollective> collectives_;
  std::vector<std::shared_ptr<const SilentGroup>> groups_;
  std::vector<Scope> scopes_;
};

} // namespace mh
