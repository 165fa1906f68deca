#include "core/memory/counting_allocator.hpp"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace mh {

struct MetaMemory::Count {
  std::mutex mutex; // tensors may be released on another thread
  int64_t used = 0, peak = 0;
  int64_t lent = 0, working = 0; // to kernels; the most of both

  void add(int64_t bytes) {
    const std::lock_guard lock(mutex);
    used += bytes;
    peak = std::max(peak, used);
    working = std::max(working, used + lent);
  }
};

namespace {

thread_local std::shared_ptr<MetaMemory::Count> current;

struct CountedBlock {
  int64_t bytes;
  std::shared_ptr<MetaMemory::Count> count; // null: not counted
};

void release(void* context) {
  const std::unique_ptr<CountedBlock> block(static_cast<CountedBlock*>(context));
  if (block->count != nullptr) {
    block->count->add(-block->bytes);
  }
}

class CountingAllocator : public c10::Allocator {
public:
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new CountedBlock{static_cast<int64_t>(bytes), current};
    if (current != nullptr) {
      current->add(block->bytes);
    }
    return {nullptr, block, &release, at::kMeta};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void*, const void*, size_t) const override {}
};

} // namespace

MetaMemory::MetaMemory()
    : count_(std::make_shared<Count>())
    , former_(std::exchange(current, count_)) {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::SetAllocator(at::kMeta, new CountingAllocator, 255); // outlives every tensor
  });
}

MetaMemory::~MetaMemory() {
  current = former_;
}

int64_t MetaMemory::used() const {
  const std::lock_guard lock(count_->mutex);
  return count_->used;
}

int64_t MetaMemory::peak() const {
  const std::lock_guard lock(count_->mutex);
  return count_->peak;
}

void MetaMemory::restart_peak() {
  const std::lock_guard lock(count_->mutex);
  count_->peak = count_->used;
  count_->working = count_->used + count_->lent;
}

void MetaMemory::lend(int64_t bytes) {
  const std::lock_guard lock(count_->mutex);
  count_->lent += bytes;
  count_->working = std::max(count_->working, count_->used + count_->lent);
}

int64_t MetaMemory::working_peak() const {
  const std::lock_guard lock(count_->mutex);
  return count_->working;
}

int64_t MetaMemory::hand_over(const at::Tensor& tensor) {
  const c10::DataPtr& data = tensor.storage().data_ptr();
  if (data.get_deleter() != &release) {
    return 0;
  }
  const auto count = std::exchange(static_cast<CountedBlock*>(data.get_context())->count, nullptr);
  if (count == nullptr) {
    return 0;
  }
  const int64_t bytes = static_cast<CountedBlock*>(data.get_context())->bytes;
  count->add(-bytes);
  return bytes;
}

UncountedMemory::UncountedMemory()
    : former_(std::exchange(current, nullptr)) {}

UncountedMemory::~UncountedMemory() {
  current = std::move(former_);
}

} // namespace mh
