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

TEST_CASE("a constructor that writes past the count of versions is refused") {
  Bench bench;
  Parameter& parameter = bench.builder.parameter({{"share", {{axis::embed, 3}}, Init::ones()}}, {});
  parameter.value.data().fill_(2);
  CHECK_THROWS_WITH(
      bench.builder.refuse_written_values(),
      doctest::Contains("a constructor writes into the value of the parameter `share`")
  );
}

TEST_CASE("a constructor that LibTorch does not let write is told what to give instead") {
  class Filling : public Decoder {
  public:
    using Decoder::Decoder;

    [[nodiscard]] std::unique_ptr<Block> layer(int64_t index, Builder& builder) const override {
      auto made = Decoder::layer(index, builder);
      builder.shared("layers.0.mlp.up.weight").value.fill_(1);
      return made;
    }
  };

  DecoderConfig config;
  config.layers = 1;
  config.hidden = 8;
  config.heads = 2;
  const Filling architecture(config, {.vocab = 32, .seq_length = 5});
  Bench bench;
  try {
    (void)make_block(architecture, 1, bench.builder);
    FAIL("it was made");
  } catch (const Error& error) {
    CHECK(
        std::string(error.what()).find("writes into the value of a parameter of layers.0") !=
        std::string::npos
    );
    CHECK(error.hint().find("Init::uniform") != std::string::npos);
  }
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
