// Parts of a run, each with a fault inside a call: MH_FAULT="KIND CALL", such as "segfault
// forward".

#include "../sound_parts.hpp"
#include "megahost/conditions.hpp"
#include "megahost/lr_schedule.hpp"
#include "megahost/nn/decoder.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/plugin.hpp"
#include "megahost/recompute.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <barrier>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

using namespace sound;

namespace {

void fault(const std::string& call) {
  const char* chosen = std::getenv("MH_FAULT");
  const std::string text = chosen == nullptr ? "" : chosen;
  if (!text.ends_with(" " + call)) {
    return;
  }
  const std::string kind = text.substr(0, text.find(' '));
  if (kind == "segfault") {
    *reinterpret_cast<volatile int*>(8) = 1;
  } else if (kind == "thrown") {
    (void)std::string("short").at(99);
  } else if (kind == "silent") {
    throw Silent();
  } else if (kind == "int") {
    throw 42;
  } else if (kind == "torch") {
    (void)at::zeros({2, 3}).matmul(at::zeros({4, 5}));
  } else if (kind == "terminate") {
    std::thread([] { throw std::runtime_error("no one catches this"); }).join();
  } else if (kind == "together") {
    std::barrier all(16);
    std::vector<std::jthread> threads;
    for (int i = 0; i < 16; ++i) {
      threads.emplace_back([&all] {
        all.arrive_and_wait();
        *reinterpret_cast<volatile int*>(8) = 1;
      });
    }
  } else if (kind == "abort") {
    std::abort();
  } else if (kind == "exit") {
    std::exit(0);
  }
}

struct Passed : torch::autograd::Function<Passed> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }

  static torch::autograd::variable_list
  backward(torch::autograd::AutogradContext*, torch::autograd::variable_list gradients) {
    fault("backward");
    return gradients;
  }
};

class Second : public mh::Block {
public:
  explicit Second(std::unique_ptr<mh::Block> inner)
      : inner_(std::move(inner)) {}

  mh::State forward(const mh::State& state, mh::StepContext& context) const override {
    fault("forward");
    const mh::State out = inner_->forward(state, context);
    return out.with("hidden", Passed::apply(out["hidden"].value));
  }

private:
  std::unique_ptr<mh::Block> inner_;
};

class Model : public mh::Decoder {
public:
  struct Config : mh::DecoderConfig {};

  static void fields(mh::Fields<Config>& f) { mh::decoder_fields(f); }

  Model(const Config& config, const Args& args)
      : Decoder(config, args) {
    fault("constructor");
  }

  int64_t layers() const override {
    fault("layers");
    return Decoder::layers();
  }

  std::unique_ptr<mh::Block> layer(int64_t index, mh::Builder& builder) const override {
    auto block = Decoder::layer(index, builder);
    if (index == 0) {
      return block;
    }
    fault("layer");
    return std::make_unique<Second>(std::move(block));
  }
};

class Descent : public Plain<mh::Optimizer> {
public:
  static void fields(mh::Fields<None>& f) {
    f.check("", [](const None&) {
      fault("check");
      return std::string();
    });
  }

  static void conditions(mh::Conditions&) { fault("conditions"); }

  Descent(const None&, const Args&) {}

  std::vector<mh::StateSpec> state() const override {
    fault("state");
    return {};
  }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override {
    fault("update");
    for (mh::UpdateItem& item : items) {
      item.weight.sub_(item.gradient, update.lr);
    }
  }
};

class Zeros : public OneDocument {
public:
  using OneDocument::OneDocument;

  static std::vector<mh::ArraySpec> arrays(const None&, const Args& args) {
    fault("arrays");
    return mh::decoder_arrays(args.seq_length);
  }

  std::string summary() const override {
    fault("summary");
    return OneDocument::summary();
  }

  int64_t size(mh::Split split) const override {
    fault("size");
    return OneDocument::size(split);
  }

  mh::Sample sample(mh::Split split, int64_t index) const override {
    if (index > 4) { // in the thread that reads ahead
      fault("sample");
    }
    mh::Sample sample = OneDocument::sample(split, index);
    const char* chosen = std::getenv("MH_FAULT");
    if (chosen != nullptr && std::string_view(chosen) == "an id") {
      std::get<std::vector<int64_t>>(sample["tokens"])[3] = 300;
    }
    return sample;
  }
};

class Negative : public Plain<mh::LrSchedule> {
public:
  Negative(const None&, const Args&) {}

  double lr(const mh::Completed& completed) const override {
    return completed.updates == 1 ? -1 : 0.1;
  }
};

class OtherPart : public Plain<mh::RecomputePolicy> {
public:
  OtherPart(const None&, const Args&) {}

  mh::Keep keep(int64_t) const override { return {.redo = {"mlpp"}}; }
};

class Bytes : public ByteIds {
public:
  Bytes(const None&, const Args&) {}

  std::vector<int32_t> encode(std::string_view text) const override {
    fault("encode");
    return ByteIds::encode(text);
  }

  std::string decode(std::span<const int32_t> ids) const override {
    fault("decode");
    return ByteIds::decode(ids);
  }
};

} // namespace

MH_PLUGIN("org.example.faults", "0.1.0", "Faults inside of calls", [](mh::Registry& r) {
  fault("registering");
  r.add<Model>("model", "a decoder");
  r.add<Descent>("descent", "gradient descent");
  r.add<Zeros>("zeros", "zeros");
  r.add<Bytes>("letters", "bytes");
  r.add<Negative>("negative", "a rate below 0");
  r.add<OtherPart>("other_part", "a part that no block has");
})
