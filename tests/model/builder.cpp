#include "megahost/builder.hpp"

#include "core/model/deferred_values.hpp"
#include "core/model/outline.hpp"
#include "megahost/nn/decoder.hpp"
#include "tests/nn/bench.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace mh;
using mh::test::Bench;

TEST_CASE("a constructor that writes into a value is refused") {
  Bench bench;
  Parameter& parameter = bench.builder.parameter({{"share", {{axis::embed, 3}}, Init::ones()}}, {});
  bench.builder.refuse_written_values();
  const at::NoGradGuard no_grad;
  parameter.value.mul_(2);
  CHECK_THROWS_WITH(
      bench.builder.refuse_written_values(),
      doctest::Contains("a constructor writes into the value of the parameter `share`")
  );
}

namespace {

DecoderConfig small_config() {
  DecoderConfig config;
  config.layers = 1;
  config.hidden = 8;
  config.heads = 2;
  return config;
}

/// A decoder whose layer does something with a parameter of its own when it is made.
class Touching : public Decoder {
public:
  explicit Touching(std::function<void(Parameter&)> touch)
      : Decoder(small_config(), {.vocab = 32, .seq_length = 5})
      , touch_(std::move(touch)) {}

  [[nodiscard]] std::unique_ptr<Block> layer(int64_t index, Builder& builder) const override {
    auto made = Decoder::layer(index, builder);
    touch_(builder.shared("layers.0.mlp.up.weight"));
    return made;
  }

  [[nodiscard]] Error refusal() const {
    Bench bench;
    try {
      (void)make_block(*this, 1, bench.builder);
    } catch (const Error& error) {
      return error;
    }
    return Error("it was made", "");
  }

private:
  std::function<void(Parameter&)> touch_;
};

} // namespace

TEST_CASE("a constructor that LibTorch does not let write is told what to give instead") {
  const Touching filling([](Parameter& p) { p.value.fill_(1); });
  const Error error = filling.refusal();
  CHECK(
      std::string(error.what()).find("writes into the value of a parameter of layers.0") !=
      std::string::npos
  );
  CHECK(error.hint().find("Init::uniform") != std::string::npos);
}

TEST_CASE("on one rank, too: writes by whatever way, and a view of a value that is made later") {
  const std::vector<std::pair<std::function<void(Parameter&)>, std::string>> touches{
      {[](Parameter& p) { p.value.data().narrow(0, 1, 2).fill_(3); }, "writes into the value of"},
      {[](Parameter& p) { p.value.detach().mul_(2); }, "writes into the value of"},
      {[](Parameter& p) { p.value.data_ptr<double>()[3] = 7; }, "writes into the value of"},
      {[](Parameter& p) {
         p.value = at::ones({16, 8}).requires_grad_();
       },
       "writes into the value"},
      {[kept = std::make_shared<at::Tensor>()](Parameter& p) { *kept = p.value.t(); },
       "keeps a view of the value of the parameter `layers.0.mlp.up.weight`"},
  };
  for (size_t i = 0; i < touches.size(); ++i) {
    CAPTURE(i);
    const Touching architecture(touches[i].first);
    CHECK(std::string(architecture.refusal().what()).find(touches[i].second) != std::string::npos);
  }
  const Touching none([](Parameter&) {});
  Bench bench;
  (void)make_block(none, 1, bench.builder);
  CHECK(bench.builder.shared("layers.0.mlp.up.weight").value.std().item<double>() > 0);
}

TEST_CASE("under ZeRO-3 no way of writing a value gets lost") {
  using Write = std::function<void(Parameter&)>;
  const std::vector<Write> writes{
      [](Parameter& p) { p.value.detach().mul_(2); },
      [](Parameter& p) { p.value.detach().copy_(at::ones({3})); },
      [](Parameter& p) { p.value.data().fill_(2); }, // has a count of versions of its own
      [](Parameter& p) { p.value.data().copy_(at::ones({3})); },
      [](Parameter& p) {
        const at::AutoDispatchBelowADInplaceOrView below; // as at::native:: functions
        p.value.fill_(2);
      },
      [](Parameter& p) { *p.value.mutable_data_ptr<double>() = 2; },
      [](Parameter& p) { p.value = at::ones({3}).requires_grad_(); },
      [](Parameter& p) { p.value.set_data(at::ones({3})); },
      [](Parameter& p) { p.value.detach().normal_(); },
  };
  for (size_t i = 0; i < writes.size(); ++i) {
    CAPTURE(i);
    Bench bench;
    DeferredValues deferred;
    deferred.during([&] {
      Parameter& parameter =
          bench.builder.parameter({{"share", {{axis::embed, 3}}, Init::ones()}}, {});
      bench.builder.refuse_written_values();
      const at::NoGradGuard no_grad;
      bool refused = false;
      try { // LibTorch itself refuses most writes into one element that stands for all
        writes[i](parameter);
        bench.builder.refuse_written_values();
      } catch (const std::exception&) {
        refused = true;
      }
      CHECK(refused);
    });
  }
}
