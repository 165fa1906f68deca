#pragma once
/// A real step on ranks that are threads, watched: the bytes of each thread's tensors, and every
/// collective that it begins.

#include "core/mesh/threads.hpp"
#include "core/plan/stage_record.hpp"
#include "core/session/session.hpp"
#include "core/step/step.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace watched {

/// Bytes that one thread's tensors take. Memory that an operator takes while it runs and gives back
/// before it ends is a kernel's workspace: the peak is seen between operators.
struct Bytes {
  std::mutex mutex; // tensors may be released by another thread
  int64_t used = 0, peak = 0;
  int64_t inside = 0; // operators that are running

  void add(int64_t bytes) {
    const std::scoped_lock lock(mutex);
    used += bytes;
    see();
  }

  void see() {
    if (inside == 0) {
      peak = std::max(peak, used);
    }
  }
};

inline thread_local std::shared_ptr<Bytes> counted; // null: not counted

/// Tells the calling thread's bytes which operators run.
class Operators {
public:
  Operators()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&enter, &leave).scopes({at::RecordScope::FUNCTION})
        )) {}

  ~Operators() { at::removeCallback(handle_); }

  Operators(const Operators&) = delete;
  Operators& operator=(const Operators&) = delete;

private:
  /// Not a node of the graph, inside which operators run.
  static bool is_operator(const at::RecordFunction& function) {
    return !std::string_view(function.name()).starts_with("autograd::");
  }

  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
    if (counted != nullptr && is_operator(function)) {
      const std::scoped_lock lock(counted->mutex);
      ++counted->inside;
    }
    return nullptr;
  }

  static void leave(const at::RecordFunction& function, at::ObserverContext*) {
    if (counted != nullptr && is_operator(function)) {
      const std::scoped_lock lock(counted->mutex);
      --counted->inside;
      counted->see();
    }
  }

  at::CallbackHandle handle_;
};

/// A block and whose it is, before the memory itself.
struct Header {
  std::shared_ptr<Bytes> owner;
  int64_t bytes;
};

constexpr size_t kRoom = 128;
static_assert(sizeof(Header) <= kRoom);

class Allocator : public c10::Allocator {
public:
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = static_cast<char*>(std::aligned_alloc(64, (bytes + kRoom + 63) / 64 * 64));
    new (block) Header{counted, static_cast<int64_t>(bytes)};
    if (counted != nullptr) {
      counted->add(static_cast<int64_t>(bytes));
    }
    return {block + kRoom, block + kRoom, &release, at::kCPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

private:
  static void release(void* data) {
    auto* header = reinterpret_cast<Header*>(static_cast<char*>(data) - kRoom);
    if (header->owner != nullptr) {
      header->owner->add(-header->bytes);
    }
    header->~Header();
    std::free(header);
  }
};

inline void install() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(new Allocator, 255); });
}

/// The transport's memory is not counted as the step's.
class Aside {
public:
  Aside()
      : former_(std::exchange(counted, nullptr)) {}

  ~Aside() { counted = std::move(former_); }

  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

private:
  std::shared_ptr<Bytes> former_;
};

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct AsideWork : c10d::Work {
  explicit AsideWork(WorkPtr of)
      : inner(std::move(of)) {}

  bool isCompleted() override { return over; }

  bool isSuccess() const override { return true; }

  bool wait(std::chrono::milliseconds limit) override {
    const Aside aside;
    over = true;
    return inner->wait(limit);
  }

  WorkPtr inner;
  bool over = false;
};

/// "all-reduce tp [4, 8] Float", as each began.
using Log = std::vector<std::string>;

inline std::string
line(const std::string& name, const std::string& axis, at::IntArrayRef sizes, at::ScalarType type) {
  return name + " " + axis + " " + c10::str(sizes) + " " + c10::toString(type);
}

/// Another transport with the log of one rank and without its bytes.
class Backend : public c10d::Backend {
public:
  Backend(c10::intrusive_ptr<c10d::Backend> inner, const std::string& group, Log* log)
      : c10d::Backend(inner->getRank(), inner->getSize())
      , inner_(std::move(inner))
      , axis_(group.substr(0, group.find(':')))
      , log_(log) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }

  WorkPtr allreduce(std::vector<at::Tensor>& t, const c10d::AllreduceOptions& o) override {
    return pass("all-reduce", t[0], [&] { return inner_->allreduce(t, o); });
  }

  WorkPtr
  _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& o) override {
    return pass("all-gather", in, [&] { return inner_->_allgather_base(out, in, o); });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& o)
      override {
    return pass("reduce-scatter", in, [&] { return inner_->_reduce_scatter_base(out, in, o); });
  }

  WorkPtr alltoall_base(
      at::Tensor& out,
      at::Tensor& in,
      std::vector<int64_t>& a,
      std::vector<int64_t>& b,
      const c10d::AllToAllOptions& o
  ) override {
    return pass("all-to-all", in, [&] { return inner_->alltoall_base(out, in, a, b, o); });
  }

  WorkPtr send(std::vector<at::Tensor>& t, int to, int tag) override {
    return pass("send", t[0], [&] { return inner_->send(t, to, tag); });
  }

  WorkPtr recv(std::vector<at::Tensor>& t, int from, int tag) override {
    return pass("receive", t[0], [&] { return inner_->recv(t, from, tag); });
  }

private:
  template <class Call>
  WorkPtr pass(const char* name, const at::Tensor& input, const Call& call) {
    const bool words = input.scalar_type() == at::kByte || input.scalar_type() == at::kLong ||
                       input.scalar_type() == at::kDouble;
    if (log_ != nullptr && !words) { // what ranks agree on in host memory
      log_->push_back(line(name, axis_, input.sizes(), input.scalar_type()));
    }
    const Aside aside;
    return c10::make_intrusive<AsideWork>(call());
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::string axis_;
  Log* log_;
};

/// One rank's step.
struct Seen {
  int64_t parameters = 0, gradients = 0, state = 0; ///< bytes that stay
  int64_t peak = 0;                                 ///< and the most of a step
  Log collectives;                                  ///< collectives of that step
};

/// The second step of each rank: the first learns what sums may start when.
inline std::vector<Seen> watch(const mh::Recipe& recipe, mh::Host& host) {
  install();
  const auto shape = mh::mesh_shape(recipe, recipe.parallel.ranks());
  std::vector<Seen> all(static_cast<size_t>(shape.world()));
  std::mutex one_at_a_time; // the host opens plugins
  mh::run_ranks(
      shape,
      [&](const mh::Mesh& mesh) {
        Seen& seen = all[static_cast<size_t>(mesh.rank())];
        counted = std::make_shared<Bytes>();
        const auto bytes = counted;
        const Operators operators;
        std::unique_ptr<mh::Session> session;
        {
          const std::scoped_lock lock(one_at_a_time);
          session = mh::make_session(
              recipe,
              host,
              {.mesh = &mesh,
               .step_peak = mh::step_peak({.recipe = recipe, .host = host, .world = shape.world()})}
          );
        }
        const auto layout = session->layout();
        std::vector<mh::Batch> batches;
        {
          const Aside aside;
          batches = mh::load_batches(*session->corpus, mh::Split::train, 0, layout);
        }
        session->allocate_gradients();
        std::map<const void*, size_t> storages;
        for (const auto& owned : session->gradients->owned()) {
          const auto& storage = owned.gradient.storage();
          storages[storage.unsafeGetStorageImpl()] = storage.nbytes();
        }
        for (const auto& [storage, size] : storages) {
          seen.gradients += static_cast<int64_t>(size);
        }
        seen.parameters = bytes->used - seen.gradients;
        mh::Weights weights(
            *session->gradients, *session->optimizer, mh::weight_options(recipe, mesh)
        );
        seen.state = bytes->used - seen.parameters - seen.gradients;
        const at::AutoGradMode grad(true);
        for (int64_t step = 1; step <= 2; ++step) {
          seen.collectives.clear();
          {
            const std::scoped_lock lock(bytes->mutex);
            bytes->peak = bytes->used;
          }
          (void)mh::train_step(
              session->passes(),
              weights,
              *session->optimizer,
              batches,
              {.clip = recipe.optimizer.clip_grad,
               .update = {.step = step, .lr = 1e-3},
               .accept = [](const mh::StepResult&) { return true; }}
          );
        }
        seen.peak = bytes->peak;
        counted = nullptr;
      },
      {.order = recipe.parallel.order,
       .wrap =
           [&](c10::intrusive_ptr<c10d::Backend> inner, const std::string& group, int64_t rank) {
             return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<Backend>(
                 std::move(inner), group, &all[static_cast<size_t>(rank)].collectives
             ));
           }}
  );
  return all;
}

} // namespace watched
