// The tensors that pass between the stages of a pipeline: states of several tensors, and when
// receives are posted.

#include "megahost/nn/dropout.hpp"
#include "megahost/nn/embedding.hpp"
#include "megahost/nn/linear.hpp"
#include "megahost/nn/vocab.hpp"
#include "tests/dist/pipelined.hpp"

#include <ATen/ops/tanh.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace passing_tests {

using namespace mh;
using namespace mh::pipelined;

namespace {

constexpr Axis kEmbed{axis::embed, 12}, kUnits{axis::mlp, 16}, kTokens{axis::vocab, kWords};

using Watch = std::function<void()>;

/// An encoder and a decoder in one pipeline: half of the layers read "source", the others add what
/// it became to "hidden". "marks" are integers, and "scale" needs no gradient.
class Toy : public Architecture {
public:
  explicit Toy(Watch watch = nullptr)
      : watch_(std::move(watch)) {}

  [[nodiscard]] int64_t layers() const override { return 4; }

  [[nodiscard]] int64_t vocab() const override { return kWords; }

  [[nodiscard]] std::unique_ptr<Block> embedding(Builder& builder) const override {
    struct Words : Block {
      explicit Words(Builder& b)
          : words(b, kTokens, kEmbed, 0.5) {}

      [[nodiscard]] State forward(const State&, StepContext& context) const override {
        const at::Tensor& tokens = context.array("tokens");
        const at::Tensor x = words.forward(tokens, context);
        const Dims dims = context.dims(kEmbed);
        State state("source", x, dims);
        state.set("hidden", x * 0.5, dims);
        const Dims narrow = {dims[0], dims[1]};
        state.set("marks", tokens % 3, narrow);
        state.set("scale", tokens.to(x.scalar_type()) / kWords, narrow);
        return state;
      }

      Embedding words;
    };

    const auto scope = builder.scope("word");
    return std::make_unique<Words>(builder);
  }

  [[nodiscard]] std::unique_ptr<Block> layer(int64_t index, Builder& builder) const override {
    struct Layer : Block {
      Layer(Builder& b, std::string reads, Watch seen)
          : up(b, {.in = kEmbed, .outs = {{"up", kUnits}}, .bias = true, .std = 0.5})
          , down(b, {.in = kUnits, .outs = {{"down", kEmbed}}, .bias = true, .std = 0.5})
          , writes(std::move(reads))
          , watch(std::move(seen)) {}

      [[nodiscard]] State forward(const State& state, StepContext& context) const override {
        if (watch && !state["source"].value.is_meta()) {
          watch();
        }
        const at::Tensor& source = state["source"].value;
        at::Tensor x = down.forward(at::tanh(up.forward(source, context)), context);
        x = x * (state["marks"].value.unsqueeze(2) + 1) * state["scale"].value.unsqueeze(2);
        return state.with(writes, state[writes].value + x);
      }

      Linear up, down;
      std::string writes;
      Watch watch;
    };

    return std::make_unique<Layer>(builder, index < 2 ? "source" : "hidden", watch_);
  }

  [[nodiscard]] std::unique_ptr<Block> head(Builder& builder) const override {
    struct Head : Block {
      explicit Head(Builder& b)
          : head(b, kEmbed, kTokens, 0.5, "embedding.word.weight") {}

      [[nodiscard]] State forward(const State& state, StepContext& context) const override {
        context.add_loss(
            {.name = "loss",
             .sum = head.loss(
                 state["hidden"].value, context.array("labels"), context.array("loss_mask"), context
             ),
             .over = "loss_mask"}
        );
        return {};
      }

      VocabHead head;
    };

    return std::make_unique<Head>(builder);
  }

private:
  Watch watch_;
};

/// A transport that reports each receive.
class Told : public c10d::Backend {
public:
  Told(c10::intrusive_ptr<c10d::Backend> inner, std::function<void()> receives)
      : c10d::Backend(inner->getRank(), inner->getSize())
      , inner_(std::move(inner))
      , receives_(std::move(receives)) {}

  c10::intrusive_ptr<c10d::Work>
  allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return inner_->allreduce(tensors, options);
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options
  ) override {
    return inner_->_allgather_base(output, input, options);
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return inner_->send(tensors, to, tag);
  }

  c10::intrusive_ptr<c10d::Work>
  recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    receives_();
    return inner_->recv(tensors, from, tag);
  }

private:
  c10::intrusive_ptr<c10d::Backend> inner_;
  std::function<void()> receives_;
};

thread_local std::string trace; // trace of the stage that this thread is

} // namespace

TEST_CASE("states of several tensors pass: an encoder and a decoder through 4 stages") {
  const Toy toy;
  const Whole one = pipelined::run(toy, {});
  compare(one, pipelined::run(toy, {.shape = {.pp = 4}, .chunks = "embed+1|1|1|1+head"}));
  compare(
      one,
      pipelined::run(
          toy, {.shape = {.pp = 4}, .order = pipeline::zero_bubble, .chunks = "embed+1|1|2|head"}
      )
  );
  compare(
      one,
      pipelined::run(
          toy,
          {.shape = {.pp = 2}, .order = pipeline::zero_bubble_vee, .chunks = "embed+1|1|1|1+head"}
      )
  );
  compare(
      one,
      pipelined::run(
          toy,
          {.shape = {.pp = 2, .dp = 2, .tp = 2}, .chunks = "embed+1|1|1|1+head", .recompute = true}
      )
  );
}

TEST_CASE("receives are posted while the pass before theirs has not begun") {
  std::string last;
  std::mutex mutex;
  const Toy toy([] { trace += 'f'; });
  (void)pipelined::run(
      toy,
      {.shape = {.pp = 2}, .order = pipeline::gpipe, .chunks = "embed+3|1+head"},
      [&](c10::intrusive_ptr<c10d::Backend> inner, const std::string&, int64_t rank) {
        trace.clear();
        return c10::make_intrusive<Told>(std::move(inner), [&, rank] {
          trace += 'r';
          const std::scoped_lock lock(mutex);
          last = rank == 1 ? trace : last;
        });
      }
  );
  // Four tensors a microbatch: those of the first two come before the first pass.
  CHECK(last.substr(0, 16) == "rrrrrrrrfrrrrfrr");
}

} // namespace passing_tests
