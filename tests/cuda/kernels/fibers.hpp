#pragma once
/// The language of kernels on a CPU: each thread of a block is a fiber, which runs until it ends or
/// comes to a barrier; then the next one does. Blocks run one after the other. Tests and sanitizers
/// see the code that a GPU runs.

#include "tests/cuda/kernels/words.hpp"

#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace fibers {

class Block {
public:
  /// Runs one block's threads.
  void run(unsigned threads, const std::function<void()>& body);

  /// Gives way to the other threads; they come to the same barrier before this one goes on.
  void barrier() { swapcontext(&fibers_[running_]->context, &home_); }

private:
  struct Fiber {
    ucontext_t context{};
    bool done = false;
    std::unique_ptr<char[]> stack;
  };

  static constexpr size_t kStack = 1 << 16;

  static void enter();

  ucontext_t home_{};
  std::vector<std::unique_ptr<Fiber>> fibers_; // kept from block to block
  size_t running_ = 0;
  const std::function<void()>* body_ = nullptr;
};

inline Block block;

} // namespace fibers

inline void fibers::Block::enter() {
  (*block.body_)();
  block.fibers_[block.running_]->done = true;
  block.barrier(); // for good
}

inline void fibers::Block::run(unsigned threads, const std::function<void()>& body) {
  body_ = &body;
  while (fibers_.size() < threads) {
    fibers_.push_back(std::make_unique<Fiber>());
    fibers_.back()->stack = std::make_unique<char[]>(kStack);
  }
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = *fibers_[i];
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack.get(), 0, kStack};
    makecontext(&fiber.context, &Block::enter, 0);
  }
  for (bool any = true; any;) {
    any = false;
    for (unsigned i = 0; i < threads; ++i) {
      if (!fibers_[i]->done) {
        running_ = threadIdx.x = i;
        swapcontext(&home_, &fibers_[i]->context);
        any = any || !fibers_[i]->done;
      }
    }
  }
}

inline void __syncthreads() {
  fibers::block.barrier();
}

namespace mh::cuda {

template <class Call>
const char*
launch(const char*, void (*kernel)(Call), int64_t blocks, int threads, const Call& call, void*) {
  for (int64_t i = 0; i < blocks; ++i) {
    blockIdx.x = static_cast<unsigned>(i);
    fibers::block.run(static_cast<unsigned>(threads), [&] { kernel(call); });
  }
  return nullptr;
}

} // namespace mh::cuda
