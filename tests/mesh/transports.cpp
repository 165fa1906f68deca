// The transport that a collective takes, and the error if there is none.

#include "core/mesh/by_device.hpp"
#include "core/mesh/nccl.hpp"
#include "megahost/error.hpp"
#include "megahost/mesh.hpp"

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <doctest/doctest.h>

namespace transports_tests {

using namespace mh;

namespace {

struct Done : c10d::Work {
  bool isCompleted() override { return true; }

  bool wait(std::chrono::milliseconds) override { return true; }
};

/// Notes what it is asked.
class Noting : public c10d::Backend {
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

public:
  explicit Noting(std::vector<std::string>& asked)
      : c10d::Backend(/*rank=*/0, /*size=*/2)
      , asked_(asked) {}

  const std::string getBackendName() const override { return "noting"; }

  WorkPtr allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    return note("all-reduce");
  }

  WorkPtr _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override {
    return note("all-gather");
  }

  WorkPtr
  _reduce_scatter_base(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&) override {
    return note("reduce-scatter");
  }

  WorkPtr
  alltoall_base(at::Tensor&, at::Tensor&, std::vector<int64_t>&, std::vector<int64_t>&, const c10d::AllToAllOptions&)
      override {
    return note("all-to-all");
  }

  WorkPtr send(std::vector<at::Tensor>&, int, int) override { return note("send"); }

  WorkPtr recv(std::vector<at::Tensor>&, int, int) override { return note("receive"); }

private:
  WorkPtr note(const char* what) {
    asked_.emplace_back(what);
    return c10::make_intrusive<Done>();
  }

  std::vector<std::string>& asked_;
};

/// One of each collective.
void all_of(const Group& group, at::Device device) {
  const at::Tensor x = at::empty({2, 3}, at::TensorOptions().device(device));
  (void)group.all_reduce(x);
  (void)group.all_gather(x, 0);
  (void)group.reduce_scatter(x, 0);
  (void)group.all_to_all(x, 0, 0);
  (void)group.send(x, 1).wait();
  (void)group.receive(x, 1).wait();
}

} // namespace

TEST_CASE("host tensors go by one transport, an accelerator's by the other") {
  std::vector<std::string> host, accelerator;
  const Group group(
      "tp",
      {0, 1},
      0,
      by_device(c10::make_intrusive<Noting>(host), c10::make_intrusive<Noting>(accelerator))
  );
  const std::vector<std::string> all{
      "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send", "receive"};
  all_of(group, at::kCPU);
  CHECK(host == all);
  CHECK(accelerator.empty());
  all_of(group, at::kMeta);
  CHECK(host == all);
  CHECK(accelerator == all);
}

TEST_CASE("without LibTorch's CUDA library there is no NCCL, and that is said") {
  try {
    (void)make_nccl(c10::make_intrusive<c10d::HashStore>(), 0, 1, std::chrono::seconds(1));
    FAIL("a transport");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).starts_with("GPUs of several processes need NCCL"));
    CHECK(error.hint().find("device = \"cpu\"") != std::string::npos);
  }
}

} // namespace transports_tests
