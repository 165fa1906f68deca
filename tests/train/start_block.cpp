#include "core/train/start_block.hpp"

#include "megahost/device.hpp"

#include <doctest/doctest.h>

namespace {

class OtherDevice : public mh::Device {
public:
  OtherDevice(at::Device device, double listed)
      : device_(device)
      , listed_(listed) {}

  [[nodiscard]] at::Device device() const override { return device_; }

  [[nodiscard]] std::string summary() const override { return "a device"; }

  [[nodiscard]] double peak_flops(at::ScalarType) const override { return listed_; }

  [[nodiscard]] int64_t memory() const override { return 0; }

private:
  at::Device device_;
  double listed_;
};

/// The peak if a measurement says 5.
mh::DevicePeak peak_of(at::Device device, double listed) {
  mh::Session session;
  session.device = std::make_unique<OtherDevice>(device, listed);
  return mh::device_peak(session, [](at::ScalarType) { return 5.0; });
}

} // namespace

TEST_CASE("a peak is that of the data sheet, else a CPU's is measured") {
  CHECK(peak_of(at::kCPU, 7).flops == 7);
  CHECK(peak_of(at::kCPU, 7).source == "data sheet");
  CHECK(peak_of(at::kCPU, 0).flops == 5);
  CHECK(peak_of(at::kCPU, 0).source == "measured");
  CHECK(peak_of(at::kCUDA, 7).flops == 7);
  CHECK(peak_of(at::kCUDA, 0).flops == 0); // a GPU is not as fast as the CPU next to it
}
