#include "core/checkpoint/background.hpp"

#include "core/base/seconds.hpp"
#include "core/checkpoint/checkpoint.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

namespace mh {

namespace {

constexpr int kNice = 10;

/// Host memory for a copy; pinned where a GPU copies into it.
at::Tensor host_like(const at::Tensor& tensor) {
  return at::empty(
      tensor.sizes(), at::TensorOptions(tensor.scalar_type()).pinned_memory(tensor.is_cuda())
  );
}

BackgroundSaves::Outcome
write_copy(const BackgroundSaves::Write& write, CheckpointContents contents, const Ranks& ranks) {
  const auto begin = Clock::now();
  BackgroundSaves::Outcome outcome{.step = contents.step};
  contents.warn = [&outcome](const std::string& sentence) { outcome.warnings.push_back(sentence); };
  try {
    const at::NoGradGuard no_grad;
    write(contents, ranks);
  } catch (const Error& error) {
    outcome.error = error;
  } catch (const std::bad_alloc&) {
    outcome.error = Error("out of memory", "", exit_code::memory);
  }
  outcome.write_seconds = seconds_since(begin);
  return outcome;
}

} // namespace

BackgroundSaves::BackgroundSaves(Write write, Ranks ranks, Ranks meeting, Exchange exchange)
    : write_(std::move(write))
    , ranks_(std::move(ranks))
    , meeting_(std::move(meeting))
    , exchange_(std::move(exchange)) {}

BackgroundSaves::~BackgroundSaves() = default; // a future of std::async waits for its thread

std::vector<Slice> BackgroundSaves::planned(std::span<const Slice> slices) const {
  std::vector<Slice> planned;
  for (const size_t i : mine_) {
    planned.push_back(slices[i]);
  }
  return planned;
}

void BackgroundSaves::plan(std::span<const Slice> slices, const Ranks& sharing) {
  mine_ = slices_to_write(slices, sharing);
  bytes_ = 0;
  for (const size_t i : mine_) {
    bytes_ += static_cast<int64_t>(slices[i].local.nbytes());
  }
}

void BackgroundSaves::begin(const CheckpointContents& contents) {
  MH_ASSERT(!running_.valid(), "a save begins while another one is in flight");
  const auto begun = Clock::now();
  (void)together(ranks_, [&] {
    const at::NoGradGuard no_grad;
    std::optional<at::Device> device; // whose copies go on by themselves
    for (size_t i = 0; i < mine_.size(); ++i) {
      const Slice& slice = contents.slices[mine_[i]];
      if (i == copies_.size()) {
        copies_.push_back({slice.name, slice.global_shape, slice.offset, host_like(slice.local)});
      }
      copies_[i].local.copy_(slice.local, /*non_blocking=*/true);
      device = slice.local.is_cpu() ? device : std::optional(slice.local.device());
    }
    if (device) {
      c10::impl::VirtualGuardImpl(device->type()).synchronizeDevice(device->index());
    }
    return std::string();
  });
  written_ = copies_;
  if (exchange_) {
    exchange_(written_);
  }
  CheckpointContents copied = contents;
  copied.slices = written_;
  const double copy_seconds = seconds_since(begun);
  running_ = std::async(std::launch::async, [this, copied = std::move(copied), copy_seconds] {
    // Linux: of this thread alone. A core that both want is the training's.
    (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
    Outcome outcome = write_copy(write_, copied, meeting_);
    outcome.copy_seconds = copy_seconds;
    return outcome;
  });
}

bool BackgroundSaves::busy() const {
  return running_.valid() &&
         running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

std::optional<BackgroundSaves::Outcome> BackgroundSaves::finished() {
  return busy() ? std::nullopt : wait();
}

std::optional<BackgroundSaves::Outcome> BackgroundSaves::wait() {
  return running_.valid() ? std::optional(running_.get()) : std::nullopt;
}

} // namespace mh
