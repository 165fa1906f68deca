#include "core/mesh/threads.hpp"

#include "megahost/error.hpp"

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

namespace mh {

namespace {

/// What the members of one group share.
struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<at::Tensor> slots;
  int64_t waiting = 0, round = 0;
  bool failed = false;
  std::map<std::pair<int, int>, std::deque<at::Tensor>> mail; // (from, to)

  void barrier() {
    std::unique_lock lock(mutex);
    const int64_t mine = round;
    if (++waiting == static_cast<int64_t>(slots.size())) {
      waiting = 0;
      ++round;
      changed.notify_all();
    } else {
      changed.wait(lock, [&] { return round != mine || failed; });
    }
    if (failed) {
      throw Error("another rank failed", "", /*exit_code=*/4);
    }
  }
};

struct Done : c10d::Work {
  bool isCompleted() override { return true; }

  bool isSuccess() const override { return true; }

  bool wait(std::chrono::milliseconds) override { return true; }
};

class ThreadBackend : public c10d::Backend {
public:
  ThreadBackend(std::shared_ptr<Shared> shared, int rank, int size)
      : c10d::Backend(rank, size)
      , shared_(std::move(shared)) {}

  const std::string getBackendName() const override { return "threads"; }

  c10::intrusive_ptr<c10d::Work>
  allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return exchange(tensors[0].clone(), [&](const std::vector<at::Tensor>& all) {
      tensors[0].copy_(reduce(all, options.reduceOp));
    });
  }

  c10::intrusive_ptr<c10d::Work>
  _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    return exchange(input, [&](const std::vector<at::Tensor>& all) {
      const auto pieces = output.chunk(getSize(), 0);
      for (size_t i = 0; i < all.size(); ++i) {
        pieces[i].copy_(all[i]);
      }
    });
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options
  ) override {
    return exchange(input, [&](const std::vector<at::Tensor>& all) {
      std::vector<at::Tensor> mine;
      for (const auto& tensor : all) {
        mine.push_back(tensor.chunk(getSize(), 0)[getRank()]);
      }
      output.copy_(reduce(mine, options.reduceOp));
    });
  }

  c10::intrusive_ptr<c10d::Work>
  alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions&)
      override {
    MH_ASSERT(output_sizes.empty() && input_sizes.empty(), "threads exchange even slices only");
    return exchange(input, [&](const std::vector<at::Tensor>& all) {
      const auto pieces = output.chunk(getSize(), 0);
      for (size_t i = 0; i < all.size(); ++i) {
        pieces[i].copy_(all[i].chunk(getSize(), 0)[getRank()]);
      }
    });
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int) override {
    const std::scoped_lock lock(shared_->mutex);
    shared_->mail[{getRank(), to}].push_back(tensors[0].clone());
    shared_->changed.notify_all();
    return c10::make_intrusive<Done>();
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int) override {
    std::unique_lock lock(shared_->mutex);
    auto& box = shared_->mail[{from, getRank()}];
    shared_->changed.wait(lock, [&] { return !box.empty() || shared_->failed; });
    if (shared_->failed) {
      throw Error("another rank failed", "", /*exit_code=*/4);
    }
    tensors[0].copy_(box.front());
    box.pop_front();
    return c10::make_intrusive<Done>();
  }

private:
  /// Everybody shows a tensor, reads all, and nobody leaves before the last has read.
  template <class Read>
  c10::intrusive_ptr<c10d::Work> exchange(const at::Tensor& mine, const Read& read) {
    shared_->slots[static_cast<size_t>(getRank())] = mine;
    shared_->barrier();
    read(shared_->slots);
    shared_->barrier();
    return c10::make_intrusive<Done>();
  }

  static at::Tensor reduce(const std::vector<at::Tensor>& all, const c10d::ReduceOp& op) {
    at::Tensor result = all[0].clone();
    for (size_t i = 1; i < all.size(); ++i) {
      if (op == c10d::ReduceOp::SUM) {
        result.add_(all[i]);
      } else {
        result =
            op == c10d::ReduceOp::MAX ? at::maximum(result, all[i]) : at::minimum(result, all[i]);
      }
    }
    return result;
  }

  std::shared_ptr<Shared> shared_;
};

/// The groups of one world, by name.
struct Switchboard {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Shared>> groups;

  c10::intrusive_ptr<c10d::Backend> connect(const std::string& name, size_t size, int64_t index) {
    if (index < 0) {
      return {};
    }
    const std::scoped_lock lock(mutex);
    auto& shared = groups[name];
    if (shared == nullptr) {
      shared = std::make_shared<Shared>();
      shared->slots.resize(size);
    }
    return c10::make_intrusive<ThreadBackend>(
        shared, static_cast<int>(index), static_cast<int>(size)
    );
  }

  void fail() {
    const std::scoped_lock lock(mutex);
    for (auto& [name, shared] : groups) {
      const std::scoped_lock group_lock(shared->mutex);
      shared->failed = true;
      shared->changed.notify_all();
    }
  }
};

} // namespace

void run_ranks(const MeshShape& shape, const std::function<void(const Mesh&)>& body) {
  Switchboard switchboard;
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < shape.world(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const Mesh mesh(
            shape,
            rank,
            [&](const std::string& name, const std::vector<int64_t>& members, int64_t index) {
              return switchboard.connect(name, members.size(), index);
            }
        );
        body(mesh);
      } catch (...) {
        {
          const std::scoped_lock lock(mutex);
          if (first == nullptr) {
            first = std::current_exception();
          }
        }
        switchboard.fail();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  if (first != nullptr) {
    std::rethrow_exception(first);
  }
}

} // namespace mh
