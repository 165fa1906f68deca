#include "core/mesh/silent.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>

namespace mh {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct Done : c10d::Work {
  bool isCompleted() override { return true; }

  bool isSuccess() const override { return true; }

  bool wait(std::chrono::milliseconds) override { return true; }
};

class Silent : public c10d::Backend {
public:
  using c10d::Backend::Backend;

  const std::string getBackendName() const override { return "silent"; }

  WorkPtr allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<Done>();
  }

  WorkPtr _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override {
    return c10::make_intrusive<Done>();
  }

  WorkPtr
  _reduce_scatter_base(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&) override {
    return c10::make_intrusive<Done>();
  }

  WorkPtr
  alltoall_base(at::Tensor&, at::Tensor&, std::vector<int64_t>&, std::vector<int64_t>&, const c10d::AllToAllOptions&)
      override {
    return c10::make_intrusive<Done>();
  }

  WorkPtr send(std::vector<at::Tensor>&, int, int) override { return c10::make_intrusive<Done>(); }

  WorkPtr recv(std::vector<at::Tensor>&, int, int) override { return c10::make_intrusive<Done>(); }
};

} // namespace

Mesh alone(const Mesh& mesh) {
  return {
      mesh.shape(),
      mesh.rank(),
      [](const std::string&, const std::vector<int64_t>& members, int64_t index) {
        return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<Silent>(
            static_cast<int>(std::max<int64_t>(index, 0)), static_cast<int>(members.size())
        ));
      }};
}

} // namespace mh
