#include "core/mesh/collective_log.hpp"
#include "megahost/error.hpp"
#include "megahost/mesh.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <numeric>
#include <utility>

namespace mh {

namespace {

c10d::ReduceOp::RedOpType reduce_op(Reduce reduce) {
  switch (reduce) {
  case Reduce::sum:
    return c10d::ReduceOp::SUM;
  case Reduce::max:
    return c10d::ReduceOp::MAX;
  case Reduce::min:
    return c10d::ReduceOp::MIN;
  }
  return c10d::ReduceOp::SUM;
}

/// Backends exchange contiguous slices along dimension 0: brings `dim` there.
at::Tensor to_front(const at::Tensor& tensor, int64_t dim) {
  return tensor.movedim(dim, 0).contiguous();
}

void check_divisible(const Group& group, const at::Tensor& tensor, int64_t dim) {
  MH_ASSERT(
      tensor.size(dim) % group.size() == 0,
      "dimension " + std::to_string(dim) + " of " + std::to_string(tensor.size(dim)) +
          " elements is not divisible over group " + group.name()
  );
}

/// The tensor for the result of a collective that has `rows` rows of the input's.
at::Tensor output_for(const at::Tensor& input, int64_t rows, int64_t dim, const at::Tensor& into) {
  auto sizes = input.sizes().vec();
  sizes[0] = rows;
  if (!into.defined()) {
    return at::empty(sizes, input.options());
  }
  MH_ASSERT(
      dim == 0 && into.is_contiguous() && into.sizes() == at::IntArrayRef(sizes),
      "a collective's result goes into a contiguous tensor of its own shape, along dimension 0"
  );
  return into;
}

} // namespace

struct Pending::Operation {
  c10::intrusive_ptr<c10d::Work> work;
  at::Tensor input; // read until the operation is over
  int64_t dim = 0;  // where dimension 0 of the result belongs
  CollectiveLog::Entry entry;
  int64_t rank = 0;
  std::shared_ptr<CollectiveLog> log;

  /// Calls the transport, whose failures become sentences.
  template <class Call>
  void guarded(const Call& call) const {
    try {
      call();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) { // a connection that is gone, a timeout
      const auto* torch = dynamic_cast<const c10::Error*>(&error);
      const std::string last = log->text();
      const std::string own = log->collective(entry).text();
      throw CollectiveError(
          "rank " + std::to_string(rank) + " lost the others in collective " + own +
              (last.starts_with(own) ? last.substr(own.size()) : "; begun last: " + last) + ": " +
              (torch != nullptr ? torch->what_without_backtrace() : error.what()),
          "look at what the other ranks say; comm.timeout is how long they are waited for",
          log->last()
      );
    }
  }
};

Pending::Pending() = default;
Pending::~Pending() = default;
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;

at::Tensor Pending::wait() {
  if (operation_ != nullptr) {
    const auto operation = std::exchange(operation_, nullptr);
    operation->guarded([&] {
      const CollectiveLog::Wait wait(*operation->log, operation->entry);
      operation->work->wait();
    });
    result_ = operation->dim == 0 ? result_ : result_.movedim(0, operation->dim);
  }
  return result_;
}

bool Pending::done() const {
  return operation_ == nullptr || operation_->work->isCompleted();
}

Group::Group(
    std::string name,
    std::vector<int64_t> members,
    int64_t index,
    c10::intrusive_ptr<c10d::Backend> backend,
    std::shared_ptr<CollectiveLog> log
)
    : name_(std::move(name))
    , members_(std::move(members))
    , index_(index)
    , backend_(std::move(backend))
    , log_(log != nullptr ? std::move(log) : std::make_shared<CollectiveLog>())
    , number_(log_->add_group(name_, members_)) {}

Group::Group(const Group&) = default;
Group& Group::operator=(const Group&) = default;
Group::~Group() = default;

Pending Group::start(const Request& request, const Start& start) const {
  MH_ASSERT(backend_ != nullptr, "group " + name_ + " has no other rank to reach");
  Pending pending;
  pending.result_ = request.result;
  pending.operation_ = std::make_unique<Pending::Operation>(Pending::Operation{
      .work = {},
      .input = request.input,
      .dim = request.dim,
      .entry = log_->begin(request.name, number_, request.input, request.peer),
      .rank = members_[static_cast<size_t>(index_)],
      .log = log_});
  auto& operation = *pending.operation_;
  operation.guarded([&] { operation.work = start(*backend_); });
  return pending;
}

Pending Group::start_all_reduce(at::Tensor tensor, Reduce reduce) const {
  if (size() == 1) {
    return Pending(std::move(tensor));
  }
  MH_ASSERT(tensor.is_contiguous(), "all-reduce needs a contiguous tensor");
  return start({"all-reduce", tensor, tensor}, [&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors = {tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(reduce);
    return backend.allreduce(tensors, options);
  });
}

Pending Group::start_all_gather(const at::Tensor& tensor, int64_t dim, at::Tensor into) const {
  if (size() == 1) {
    return Pending(into.defined() ? into.copy_(tensor) : tensor);
  }
  at::Tensor input = to_front(tensor, dim);
  at::Tensor output = output_for(input, input.size(0) * size(), dim, into);
  return start({"all-gather", input, output, dim}, [&](c10d::Backend& backend) {
    return backend._allgather_base(output, input);
  });
}

Pending Group::start_reduce_scatter(const at::Tensor& tensor, int64_t dim, at::Tensor into) const {
  if (size() == 1) {
    return Pending(into.defined() ? into.copy_(tensor) : tensor);
  }
  check_divisible(*this, tensor, dim);
  at::Tensor input = to_front(tensor, dim);
  at::Tensor output = output_for(input, input.size(0) / size(), dim, into);
  return start({"reduce-scatter", input, output, dim}, [&](c10d::Backend& backend) {
    return backend._reduce_scatter_base(output, input);
  });
}

Pending Group::send(const at::Tensor& tensor, int64_t to) const {
  MH_ASSERT(tensor.is_contiguous(), "a transfer needs a contiguous tensor");
  return start({"send to", tensor, tensor, 0, to}, [&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors = {tensor};
    return backend.send(tensors, static_cast<int>(to), 0);
  });
}

Pending Group::receive(at::Tensor into, int64_t from) const {
  MH_ASSERT(into.is_contiguous(), "a transfer needs a contiguous tensor");
  return start({"receive from", into, into, 0, from}, [&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors = {into};
    return backend.recv(tensors, static_cast<int>(from), 0);
  });
}

void Group::all_reduce(at::Tensor tensor, Reduce reduce) const {
  start_all_reduce(std::move(tensor), reduce).wait();
}

at::Tensor Group::all_gather(const at::Tensor& tensor, int64_t dim) const {
  return start_all_gather(tensor, dim).wait();
}

at::Tensor Group::reduce_scatter(const at::Tensor& tensor, int64_t dim) const {
  return start_reduce_scatter(tensor, dim).wait();
}

at::Tensor Group::all_to_all(const at::Tensor& tensor, int64_t split, int64_t concat) const {
  if (size() == 1) {
    return tensor;
  }
  check_divisible(*this, tensor, split);
  at::Tensor input = to_front(tensor, split);
  at::Tensor output = at::empty_like(input);
  start({"all-to-all", input, output}, [&](c10d::Backend& backend) {
    std::vector<int64_t> even;
    return backend.alltoall_base(output, input, even, even);
  }).wait();
  if (split == concat) { // the pieces follow one another as they came
    return output.movedim(0, split);
  }
  std::vector<at::Tensor> pieces = output.chunk(size(), 0);
  for (auto& piece : pieces) {
    piece = piece.movedim(0, split);
  }
  return at::cat(pieces, concat);
}

at::Tensor Group::all_to_all_rows(
    const at::Tensor& tensor, const std::vector<int64_t>& send, const std::vector<int64_t>& receive
) const {
  if (size() == 1) {
    return tensor;
  }
  const auto total = [](const std::vector<int64_t>& rows) {
    return std::accumulate(rows.begin(), rows.end(), int64_t{0});
  };
  MH_ASSERT(
      total(send) == tensor.size(0) && send.size() == members_.size() &&
          receive.size() == members_.size(),
      "the rows that an all-to-all sends are those of its tensor, so many for each member"
  );
  at::Tensor input = tensor.contiguous();
  auto sizes = input.sizes().vec();
  sizes[0] = total(receive);
  at::Tensor output = at::empty(sizes, input.options());
  start({"all-to-all", input, output}, [&](c10d::Backend& backend) {
    std::vector<int64_t> from = receive;
    std::vector<int64_t> to = send;
    return backend.alltoall_base(output, input, from, to);
  }).wait();
  return output;
}

at::Tensor Group::slice(const at::Tensor& tensor, int64_t dim) const {
  if (size() == 1) {
    return tensor;
  }
  check_divisible(*this, tensor, dim);
  const int64_t length = tensor.size(dim) / size();
  return tensor.narrow(dim, index_ * length, length);
}

} // namespace mh
