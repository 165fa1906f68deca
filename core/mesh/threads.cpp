#include "core/mesh/threads.hpp"

#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace mh {

namespace {

/// The state that the members of one group share. Each member shows a copy of a tensor and goes on;
/// results are made when they are waited for, so operations may be waited for in any order.
struct Shared {
  explicit Shared(size_t members)
      : begun(members) {}

  struct Round {
    std::vector<at::Tensor> shown;
    size_t missing = 0, unread = 0;
  };

  struct Channel {
    std::map<int64_t, at::Tensor> letters; // by number
    int64_t sent = 0, expected = 0;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int64_t> begun;                      // rounds that each member has begun
  std::map<int64_t, Round> rounds;                 // by number, until all have read
  std::map<std::pair<int, int>, Channel> channels; // (from, to)
  bool failed = false;

  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, const Ready& ready) {
    changed.wait(lock, [&] { return ready() || failed; });
    if (failed) {
      throw Error("another rank failed", "", exit_code::communication);
    }
  }

  /// Shows a tensor in this member's next round; returns its number.
  int64_t show(int member, const at::Tensor& tensor) {
    const std::scoped_lock lock(mutex);
    const int64_t number = begun[static_cast<size_t>(member)]++;
    Round& round = rounds[number];
    if (round.shown.empty()) {
      round.shown.resize(begun.size());
      round.missing = round.unread = begun.size();
    }
    round.shown[static_cast<size_t>(member)] = tensor;
    if (--round.missing == 0) {
      changed.notify_all();
    }
    return number;
  }

  /// The tensors that all members showed.
  std::vector<at::Tensor> read(int64_t number) {
    std::unique_lock lock(mutex);
    Round& round = rounds.at(number);
    wait(lock, [&] { return round.missing == 0; });
    std::vector<at::Tensor> shown = round.shown;
    if (--round.unread == 0) {
      rounds.erase(number);
    }
    return shown;
  }
};

/// Something that is finished when it is waited for.
struct Posted : c10d::Work {
  std::function<void()> finish; // empty: done

  bool isCompleted() override { return finish == nullptr; }

  bool isSuccess() const override { return true; }

  bool wait(std::chrono::milliseconds) override {
    if (finish != nullptr) {
      const at::NoGradGuard no_grad; // whoever waits may do so while gradients are recorded
      std::exchange(finish, nullptr)();
    }
    return true;
  }
};

c10::intrusive_ptr<c10d::Work> posted(std::function<void()> finish) {
  auto work = c10::make_intrusive<Posted>();
  work->finish = std::move(finish);
  return work;
}

at::Tensor reduced(const std::vector<at::Tensor>& all, const c10d::ReduceOp& op) {
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

class ThreadBackend : public c10d::Backend {
public:
  ThreadBackend(std::shared_ptr<Shared> shared, int rank, int size)
      : c10d::Backend(rank, size)
      , shared_(std::move(shared)) {}

  const std::string getBackendName() const override { return "threads"; }

  c10::intrusive_ptr<c10d::Work>
  allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return exchange(
        tensors[0],
        [output = tensors[0], op = options.reduceOp](const std::vector<at::Tensor>& all) {
          output.copy_(reduced(all, op));
        }
    );
  }

  c10::intrusive_ptr<c10d::Work>
  _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    return exchange(input, [output](const std::vector<at::Tensor>& all) {
      const auto pieces = output.chunk(static_cast<int64_t>(all.size()), 0);
      for (size_t i = 0; i < all.size(); ++i) {
        pieces[i].copy_(all[i]);
      }
    });
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options
  ) override {
    return exchange(
        input,
        [output, rank = getRank(), op = options.reduceOp](const std::vector<at::Tensor>& all) {
          output.copy_(reduced(parts(all, rank), op));
        }
    );
  }

  c10::intrusive_ptr<c10d::Work>
  alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions&)
      override {
    if (!output_sizes.empty() || !input_sizes.empty()) {
      return exchange_rows(output, input, output_sizes, input_sizes);
    }
    return exchange(input, [output, rank = getRank()](const std::vector<at::Tensor>& all) {
      const auto mine = parts(all, rank);
      const auto pieces = output.chunk(static_cast<int64_t>(all.size()), 0);
      for (size_t i = 0; i < all.size(); ++i) {
        pieces[i].copy_(mine[i]);
      }
    });
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int) override {
    at::Tensor letter = tensors[0].clone();
    const std::scoped_lock lock(shared_->mutex);
    auto& channel = shared_->channels[{getRank(), to}];
    channel.letters[channel.sent++] = std::move(letter);
    shared_->changed.notify_all();
    return posted(nullptr);
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int) override {
    const std::scoped_lock lock(shared_->mutex);
    auto& channel = shared_->channels[{from, getRank()}];
    return posted([shared = shared_, &channel, number = channel.expected++, output = tensors[0]] {
      std::unique_lock waiting(shared->mutex);
      shared->wait(waiting, [&] { return channel.letters.contains(number); });
      output.copy_(channel.letters.extract(number).mapped());
    });
  }

private:
  /// The slice of member `rank` of each tensor.
  static std::vector<at::Tensor> parts(const std::vector<at::Tensor>& all, int rank) {
    std::vector<at::Tensor> mine;
    for (const auto& tensor : all) {
      mine.push_back(tensor.chunk(static_cast<int64_t>(all.size()), 0)[static_cast<size_t>(rank)]);
    }
    return mine;
  }

  c10::intrusive_ptr<c10d::Work>
  exchange(const at::Tensor& mine, std::function<void(const std::vector<at::Tensor>&)> use) {
    const int64_t number = shared_->show(getRank(), mine.clone());
    return posted([shared = shared_, number, use = std::move(use)] { use(shared->read(number)); });
  }

  /// Uneven slices: a letter to each member, and one from each.
  c10::intrusive_ptr<c10d::Work> exchange_rows(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<int64_t>& output_sizes,
      const std::vector<int64_t>& input_sizes
  ) {
    std::vector<c10::intrusive_ptr<c10d::Work>> arrivals;
    int64_t to_row = 0, from_row = 0;
    for (int member = 0; member < getSize(); ++member) {
      const auto at = static_cast<size_t>(member);
      std::vector<at::Tensor> letter{input.narrow(0, from_row, input_sizes[at])};
      std::vector<at::Tensor> room{output.narrow(0, to_row, output_sizes[at])};
      (void)send(letter, member, 0);
      arrivals.push_back(recv(room, member, 0));
      from_row += input_sizes[at];
      to_row += output_sizes[at];
    }
    return posted([arrivals] {
      for (const auto& arrival : arrivals) {
        arrival->wait();
      }
    });
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
      shared = std::make_shared<Shared>(size);
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

void run_ranks(
    const MeshShape& shape,
    const std::function<void(const Mesh&)>& body,
    const ThreadOptions& options
) {
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
              auto backend = switchboard.connect(name, members.size(), index);
              return options.wrap && backend ? options.wrap(std::move(backend), name, rank)
                                             : std::move(backend);
            },
            options.order
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
