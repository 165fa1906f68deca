#include "core/mesh/collective_log.hpp"
#include "megahost/error.hpp"
#include "megahost/mesh.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

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

} // namespace

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
    , log_(log != nullptr ? std::move(log) : std::make_shared<CollectiveLog>()) {}

Group::Group(const Group&) = default;
Group& Group::operator=(const Group&) = default;
Group::~Group() = default;

void Group::run(const char* name, const at::Tensor& tensor, const std::function<void()>& collective)
    const {
  log_->begin(name, name_, tensor);
  try {
    collective();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) { // of the transport: a connection that is gone, a timeout
    const auto* torch = dynamic_cast<const c10::Error*>(&error);
    throw Error(
        "rank " + std::to_string(members_[static_cast<size_t>(index_)]) +
            " lost the others in collective " + log_->text() + ": " +
            (torch != nullptr ? torch->what_without_backtrace() : error.what()),
        "look at what the other ranks say; comm.timeout is how long they are waited for",
        exit_code::communication
    );
  }
}

void Group::all_reduce(at::Tensor tensor, Reduce reduce) const {
  if (size() == 1) {
    return;
  }
  MH_ASSERT(tensor.is_contiguous(), "all-reduce needs a contiguous tensor");
  std::vector<at::Tensor> tensors = {tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = reduce_op(reduce);
  run("all-reduce", tensor, [&] { backend_->allreduce(tensors, options)->wait(); });
}

at::Tensor Group::all_gather(const at::Tensor& tensor, int64_t dim) const {
  if (size() == 1) {
    return tensor;
  }
  at::Tensor input = to_front(tensor, dim);
  auto sizes = input.sizes().vec();
  sizes[0] *= size();
  at::Tensor output = at::empty(sizes, input.options());
  run("all-gather", input, [&] { backend_->_allgather_base(output, input)->wait(); });
  return output.movedim(0, dim);
}

at::Tensor Group::reduce_scatter(const at::Tensor& tensor, int64_t dim) const {
  if (size() == 1) {
    return tensor;
  }
  check_divisible(*this, tensor, dim);
  at::Tensor input = to_front(tensor, dim);
  auto sizes = input.sizes().vec();
  sizes[0] /= size();
  at::Tensor output = at::empty(sizes, input.options());
  run("reduce-scatter", input, [&] { backend_->_reduce_scatter_base(output, input)->wait(); });
  return output.movedim(0, dim);
}

at::Tensor Group::all_to_all(const at::Tensor& tensor, int64_t split, int64_t concat) const {
  if (size() == 1) {
    return tensor;
  }
  check_divisible(*this, tensor, split);
  at::Tensor input = to_front(tensor, split);
  at::Tensor output = at::empty_like(input);
  std::vector<int64_t> even;
  run("all-to-all", input, [&] { backend_->alltoall_base(output, input, even, even)->wait(); });
  std::vector<at::Tensor> pieces = output.chunk(size(), 0);
  for (auto& piece : pieces) {
    piece = piece.movedim(0, split);
  }
  return at::cat(pieces, concat);
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
