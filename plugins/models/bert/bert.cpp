/// BERT: tokens see those before and behind them. Some are hidden, and the model says what they
/// were; and it says whether two passages belong together.

#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "bert.hpp"

#include "retriever.hpp"

#include <megahost/error.hpp>
#include <megahost/nn/vocab.hpp>
#include <megahost/plugin.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tanh.h>

#include <memory>
#include <utility>

namespace mh::bert {
namespace {

constexpr auto kHidden = "hidden";

/// The first block: the tokens' embedding.
class FirstBlock : public Block {
public:
  FirstBlock(
      Builder& builder, const BertConfig& c, int64_t seq_length, std::unique_ptr<NormPart> norm
  )
      : embed_(embed_axis(c))
      , embedding_(builder, c, seq_length, std::move(norm), "embedding") {}

  [[nodiscard]] State forward(const State&, StepContext& context) const override {
    const at::Tensor* types =
        context.has_array("token_types") ? &context.array("token_types") : nullptr;
    const at::Tensor x = embedding_.forward(context.array("tokens"), types, context);
    return {kHidden, x, context.dims(embed_)};
  }

private:
  Axis embed_;
  BertEmbedding embedding_;
};

constexpr Axis kClasses{{"classes"}, 2};

/// The class of a sample's two passages by its first token: one of two. Every token is classified,
/// and the array "order_loss_mask" marks the first.
class PairHead {
public:
  PairHead(Builder& builder, const BertConfig& c)
      : pooler_(
            builder,
            {.in = embed_axis(c),
             .outs = {{"pooler", embed_axis(c)}},
             .bias = true,
             .std = c.init_std,
             .fp8 = false}
        )
      , classes_(
            builder,
            {.in = embed_axis(c),
             .outs = {{"pair", kClasses}},
             .bias = true,
             .std = c.init_std,
             .fp8 = false}
        ) {}

  void add_losses(const at::Tensor& x, StepContext& context) const {
    const at::Tensor& labels = context.array("order_labels");
    const at::Tensor& mask = context.array("order_loss_mask");
    const at::Tensor made = classes_.forward(at::tanh(pooler_.forward(x, context)), context);
    const at::Tensor z = convert( // logits of the tokens that the arrays have
        made,
        context.place(kClasses),
        context.place(kClasses, Tier::tokens),
        context.mesh()
    );
    const auto wide = z.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor scores = at::log_softmax(z, -1, wide); // [seq, batch, 2]
    const at::Tensor picked = scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1);
    const at::Tensor right = scores.detach().argmax(-1).eq(labels);
    context.add_loss(
        {.name = "sop loss", .sum = (picked * mask).sum().neg(), .over = "order_loss_mask"}
    );
    context.add_loss(
        {.name = "sop accuracy",
         .sum = (right * mask).sum().to(wide),
         .over = "order_loss_mask",
         .weight = 0}
    );
  }

private:
  Linear pooler_, classes_;
};

/// A dense layer with activation and norm, then scores of the vocabulary, with a bias; and, where
/// the corpus gives pairs, the head of pairs.
class BertHead : public Block {
public:
  using MakeNorm = std::function<std::unique_ptr<NormPart>(Builder&)>;

  BertHead(Builder& builder, const BertConfig& c, const MakeNorm& make_norm)
      : final_norm_(c.post() ? nullptr : builder.below("norm", [&] { return make_norm(builder); }))
      , activation_(activation_kind(c.of_head()))
      , vocab_{axis::vocab, *c.vocab}
      , transform_(
            builder,
            {.in = embed_axis(c),
             .outs = {{"transform", embed_axis(c)}},
             .bias = true,
             .std = c.init_std,
             .fp8 = false}
        )
      , norm_(builder.below("transform_norm", [&] { return make_norm(builder); }))
      , words_(
            builder,
            embed_axis(c),
            vocab_,
            c.init_std,
            c.tied ? "embedding.word.weight" : "",
            /*bias=*/true
        )
      , pair_(c.pair_head ? std::make_unique<PairHead>(builder, c) : nullptr) {}

  [[nodiscard]] State forward(const State& state, StepContext& context) const override {
    if (context.mode().last_logits) { // what a text goes on with
      throw Error(
          "BERT finds hidden tokens of a text that is there, and does not continue one",
          "ask it by megahost fill-mask, measure it by megahost eval; to write, train gpt, llama or t5",
          exit_code::data
      );
    }
    at::Tensor x = state[kHidden].value;
    if (final_norm_ != nullptr) {
      x = final_norm_->forward(x, context);
    }
    const at::Tensor y =
        norm_->forward(activate(activation_, transform_.forward(x, context)), context);
    if (!context.has_array("labels")) {
      return {"logits", words_.logits(y, context), context.dims(vocab_)};
    }
    const auto& mask = context.array("loss_mask");
    const auto factor = context.loss_factor("loss_mask");
    at::Tensor correct;
    const at::Tensor loss =
        words_.loss(y, context.array("labels"), mask, context, factor, &correct);
    context.add_loss({.name = "lm loss", .sum = loss, .over = "loss_mask"});
    context.add_loss({.name = "lm accuracy", .sum = correct, .over = "loss_mask", .weight = 0});
    if (pair_ != nullptr && context.has_array("order_labels")) {
      pair_->add_losses(x, context);
    }
    return {};
  }

private:
  std::unique_ptr<NormPart> final_norm_; // or null
  ActivationKind activation_;
  Axis vocab_;
  Linear transform_;
  std::unique_ptr<NormPart> norm_;
  VocabHead words_;
  std::unique_ptr<PairHead> pair_; // or null
};

/// An encoder of the decoders' parts; its embedding and its head are BERT's own.
///
/// Parameters: those of a decoder (nn/decoder.hpp), and
///
///   embedding.token_type.weight  [token_types, hidden]  token_types > 0
///   embedding.norm.*             [hidden]               norm_placement = "post"
///   head.transform.*             [hidden, hidden], [hidden]
///   head.transform_norm.*        [hidden]
///   head.bias                    [vocab]
///   head.pooler.*                [hidden, hidden], [hidden]   pair_head
///   head.pair.*                  [2, hidden], [2]             pair_head
///
/// Source:  arXiv:1810.04805; norms before the parts: arXiv:1909.08053
class Bert : public Decoder {
public:
  using Config = BertConfig;

  static void fields(Fields<Config>& f) {
    encoder_fields(f);
    f.add(
        "pair_head",
        &Config::pair_head,
        "a head that says of two passages whether they belong together in this order"
    );
    f.add(
         "head_activation",
         &Config::head_activation,
         "activation of the head's dense layer; that of the layers if absent. Megatron-LM's is gelu "
         "whatever theirs is"
    )
        .one_of({"gelu", "gelu_tanh", "relu", "relu2"});
    f.check("head_bias", [](const Config& c) -> std::string {
      return c.head_bias ? "BERT's output layer has a bias as it is; leave it out" : "";
    });
    f.check("logit_scale", [](const Config& c) -> std::string {
      return c.logit_scale != 1 ? "BERT's scores come from a dense layer with a norm, and have no "
                                  "scale"
                                : "";
    });
    f.check("logit_cap", [](const Config& c) -> std::string {
      return c.logit_cap ? "BERT's scores come from a dense layer with a norm, and have no cap"
                         : "";
    });
    f.check("activation", [](const Config& c) -> std::string {
      return is_gated(activation_kind(c.of_head()))
                 ? "the head's dense layer has this activation, too, and one that is gated needs "
                   "two; choose gelu, gelu_tanh, relu or relu2, or give head_activation"
                 : "";
    });
  }

  static HfMapping hugging_face_config() { return hugging_face_mapping(); }

  Bert(const Config& config, const Args& args)
      : Decoder(config, args)
      , own_(config)
      , seq_length_(args.seq_length) {
    static_cast<DecoderConfig&>(own_) = Decoder::config(); // with absent fields filled in
  }

  [[nodiscard]] std::unique_ptr<Block> embedding(Builder& builder) const override {
    auto norm_of_sum = own_.post() ? builder.below("norm", [&] { return norm(builder); }) : nullptr;
    return std::make_unique<FirstBlock>(builder, own_, seq_length_, std::move(norm_of_sum));
  }

  [[nodiscard]] std::unique_ptr<Block> head(Builder& builder) const override {
    return std::make_unique<BertHead>(builder, own_, [this](Builder& b) { return norm(b); });
  }

  [[nodiscard]] std::vector<HfTensor> hugging_face() const override {
    return hugging_face_names(own_);
  }

  [[nodiscard]] std::vector<HfTensor> megatron() const override { return megatron_names(own_); }

private:
  Config own_;
  int64_t seq_length_;
};

} // namespace
} // namespace mh::bert

MH_PLUGIN("org.megahost.bert", "0.1.0", "BERT encoder models", [](mh::Registry& registry) {
  registry.add<mh::bert::Bert>(
      "bert", "encoder that learns hidden tokens and the order of passages"
  );
  mh::bert::add_retriever(registry);
});
