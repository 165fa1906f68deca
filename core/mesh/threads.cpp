#include "core/mesh/threads.hpp"

#include "core/mesh/exchange.hpp"
#include "megahost/error.hpp"

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

/// The state that the members of one group share.
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

class ThreadExchange : public TensorExchange {
public:
  ThreadExchange(std::shared_ptr<Shared> shared, int member)
      : shared_(std::move(shared))
      , member_(member) {}

  int64_t show(const char*, const at::Tensor& tensor) override {
    return shared_->show(member_, tensor.clone());
  }

  bool shown(int64_t round) override {
    const std::scoped_lock lock(shared_->mutex);
    return shared_->rounds.at(round).missing == 0;
  }

  void read(int64_t round, const at::Tensor&, const Use& use) override {
    use(shared_->read(round));
  }

  void send(const at::Tensor& tensor, int to) override {
    at::Tensor letter = tensor.clone();
    const std::scoped_lock lock(shared_->mutex);
    auto& channel = shared_->channels[{member_, to}];
    channel.letters[channel.sent++] = std::move(letter);
    shared_->changed.notify_all();
  }

  int64_t expect(int from) override {
    const std::scoped_lock lock(shared_->mutex);
    return from_member(from).expected++;
  }

  bool arrived(int from, int64_t number) override {
    const std::scoped_lock lock(shared_->mutex);
    return from_member(from).letters.contains(number);
  }

  void receive(int from, int64_t number, const at::Tensor& into) override {
    std::unique_lock lock(shared_->mutex);
    auto& channel = from_member(from);
    shared_->wait(lock, [&] { return channel.letters.contains(number); });
    into.copy_(channel.letters.extract(number).mapped());
  }

private:
  Shared::Channel& from_member(int from) { return shared_->channels[{from, member_}]; }

  std::shared_ptr<Shared> shared_;
  int member_;
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
    const int member = static_cast<int>(index);
    return exchange_backend(
        std::make_shared<ThreadExchange>(shared, member), "threads", member, static_cast<int>(size)
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
