#include "core/mesh/by_device.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <utility>

namespace mh {

namespace {

class ByDevice : public c10d::Backend {
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using Sizes = std::vector<int64_t>;
  using Tensors = std::vector<at::Tensor>;

public:
  ByDevice(BackendPtr host, BackendPtr accelerator)
      : c10d::Backend(host->getRank(), host->getSize())
      , host_(std::move(host))
      , accelerator_(std::move(accelerator)) {}

  const std::string getBackendName() const override {
    return host_->getBackendName() + "+" + accelerator_->getBackendName();
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return of(tensors[0]).allreduce(tensors, options);
  }

  WorkPtr _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options
  ) override {
    return of(input)._allgather_base(output, input, options);
  }

  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options
  ) override {
    return of(input)._reduce_scatter_base(output, input, options);
  }

  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      Sizes& output_rows,
      Sizes& input_rows,
      const c10d::AllToAllOptions& options
  ) override {
    return of(input).alltoall_base(output, input, output_rows, input_rows, options);
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return of(tensors[0]).send(tensors, to, tag);
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return of(tensors[0]).recv(tensors, from, tag);
  }

private:
  c10d::Backend& of(const at::Tensor& tensor) const {
    return tensor.is_cpu() ? *host_ : *accelerator_;
  }

  BackendPtr host_, accelerator_;
};

} // namespace

c10::intrusive_ptr<c10d::Backend>
by_device(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Backend> accelerator) {
  return c10::make_intrusive<ByDevice>(std::move(host), std::move(accelerator));
}

} // namespace mh
