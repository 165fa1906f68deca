#include "core/mesh/silent.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <utility>

namespace mh {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// Known to be over only when it was waited for, as Gloo's.
class Asked : public c10d::Work {
public:
  Asked(CollectiveListener* listener, int64_t number)
      : listener_(listener)
      , number_(number) {}

  bool isCompleted() override { return waited_; }

  bool isSuccess() const override { return true; }

  bool wait(std::chrono::milliseconds) override {
    if (!std::exchange(waited_, true) && listener_ != nullptr) {
      listener_->waited(number_);
    }
    return true;
  }

private:
  CollectiveListener* listener_;
  int64_t number_;
  bool waited_ = false;
};

void repeat(const at::Tensor& output, const at::Tensor& input) {
  if (!input.is_meta()) {
    for (auto& piece : output.chunk(output.size(0) / input.size(0), 0)) {
      piece.copy_(input);
    }
  }
}

std::string_view reduce_name(const c10d::ReduceOp& op) {
  return op == c10d::ReduceOp::SUM ? "sum" : op == c10d::ReduceOp::MAX ? "max" : "min";
}

class Silent : public c10d::Backend {
public:
  Silent(SilentGroup group, int64_t index, const SilentOptions& options)
      : c10d::Backend(static_cast<int>(index), static_cast<int>(group.members.size()))
      , group_(std::move(group))
      , listener_(options.listener)
      , answers_(options.answers)
      , compute_(options.compute) {}

  const std::string getBackendName() const override { return "silent"; }

  WorkPtr
  allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    answer("all-reduce", tensors[0], tensors[0], reduce_name(options.reduceOp));
    return asked("all-reduce", tensors[0]);
  }

  WorkPtr
  _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    if (answers_ && !answer("all-gather", input, output)) {
      repeat(output, input);
    }
    return asked("all-gather", input);
  }

  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options
  ) override {
    answer("reduce-scatter", input, output, reduce_name(options.reduceOp));
    return asked("reduce-scatter", input);
  }

  WorkPtr
  alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>&, std::vector<int64_t>&, const c10d::AllToAllOptions&)
      override {
    answer("all-to-all", input, output);
    return asked("all-to-all", input);
  }

  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int) override {
    answer("send", tensors[0], {}, "", to);
    return asked("send", tensors[0], to);
  }

  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int) override {
    answer("receive", {}, tensors[0], "", from);
    return asked("receive", tensors[0], from);
  }

private:
  /// Whether `compute_` has written the answer.
  bool answer(
      std::string_view name,
      const at::Tensor& input,
      const at::Tensor& output,
      std::string_view reduce = "",
      int64_t peer = -1
  ) const {
    return compute_ && compute_({group_, name, reduce, input, output, peer});
  }

  WorkPtr asked(const char* name, const at::Tensor& input, int64_t peer = -1) {
    const int64_t number = listener_ == nullptr ? 0 : listener_->began(group_, name, input, peer);
    return c10::make_intrusive<Asked>(listener_, number);
  }

  SilentGroup group_;
  CollectiveListener* listener_;
  bool answers_;
  std::function<bool(const SilentCollective&)> compute_;
};

} // namespace

Mesh alone(const MeshShape& shape, int64_t rank, const SilentOptions& options) {
  const auto connect =
      [options](
          const std::string& name, const std::vector<int64_t>& members, int64_t index
      ) -> c10::intrusive_ptr<c10d::Backend> {
    if (index < 0) {
      return {};
    }
    return c10::make_intrusive<Silent>(
        SilentGroup{name.substr(0, name.find(':')), members}, index, options
    );
  };
  return {shape, rank, connect, options.order};
}

} // namespace mh
