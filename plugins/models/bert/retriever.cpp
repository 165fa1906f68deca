/// Two encoders, one of queries and one of contexts, whose first tokens say how well a query and a
/// context go together.

#include "retriever.hpp"

#include "retrieval_loss.hpp"

#include <megahost/conditions.hpp>
#include <megahost/error.hpp>
#include <megahost/nn/linear.hpp>
#include <megahost/registry.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace mh::bert {
namespace {

/// A text of a sample, of all that the model reads.
struct Text {
  std::string sequence; ///< "" is the sample's own: the right context
  std::string name;     ///< the activation's name, and the model's output's without "_embedding"
  int64_t number;

  [[nodiscard]] bool is_query() const { return sequence == kQuery; }

  [[nodiscard]] std::string tokens() const {
    return sequence.empty() ? "tokens" : sequence + "_tokens";
  }
};

/// The query first.
std::vector<Text> texts_of(const RetrieverConfig& c) {
  std::vector<Text> texts{{kQuery, kQuery, 0}, {"", kContext, 1}};
  for (int64_t i = 1; i <= c.hard_negatives; ++i) {
    texts.push_back({negative_name(i), negative_name(i), i + 1});
  }
  return texts;
}

/// While it lives, the context describes the tokens of a text. Dropout's masks depend on the number
/// of the sample: texts of one sample that pass through the same layers get numbers of their own,
/// else a query would be known by its mask.
class Within {
public:
  Within(StepContext& context, const Text& text)
      : tokens_(context.within(text.sequence)) {
    constexpr int kFarApart = 40;
    (void)context.cached("samples", [&] {
      const at::Tensor numbers = at::tensor(context.batch().samples, at::kLong);
      return (numbers + (text.number << kFarApart)).to(context.array(text.tokens()).device());
    });
  }

private:
  SequenceScope tokens_;
};

/// A part of the model in each tower; shared towers have one.
template <class T>
class Towers {
public:
  /// `make` makes one; its FLOPs are counted for all texts that pass through it.
  template <class Make>
  Towers(Builder& builder, const RetrieverConfig& c, const Make& make) {
    const std::vector<Text> texts = texts_of(c);
    const std::span<const Text> all(texts);
    if (c.shared_towers) {
      context_ = made(builder, all, "", make);
      return;
    }
    query_ = made(builder, all.first(1), kQuery, make);
    context_ = made(builder, all.subspan(1), kContext, make);
  }

  [[nodiscard]] const T& of(const Text& text) const {
    return text.is_query() && query_ != nullptr ? *query_ : *context_;
  }

private:
  template <class Make>
  static std::unique_ptr<T>
  made(Builder& builder, std::span<const Text> texts, std::string_view tower, const Make& make) {
    const Flops before = builder.flops;
    const auto make_for = [&](const Text& text) {
      const auto tokens = builder.within(text.sequence);
      return tower.empty() ? make(builder, tower)
                           : builder.below(tower, [&] { return make(builder, tower); });
    };
    std::unique_ptr<T> part = make_for(texts.front());
    const Flops first{
        builder.flops.gemms - before.gemms, builder.flops.attention - before.attention};
    const auto length = [&](const Text& text) {
      const auto tokens = builder.within(text.sequence);
      return static_cast<double>(builder.seq());
    };
    for (const Text& text : texts.subspan(1)) {
      const double share = length(text) / length(texts.front());
      builder.flops.gemms += first.gemms * share;
      builder.flops.attention += first.attention * share * share;
    }
    return part;
  }

  std::unique_ptr<T> query_; // or null
  std::unique_ptr<T> context_;
};

/// The embeddings of all texts that the batch has.
class FirstTowers : public Block {
public:
  template <class Make>
  FirstTowers(Builder& builder, const RetrieverConfig& c, const Make& make)
      : embed_(embed_axis(c))
      , texts_(texts_of(c))
      , towers_(builder, c, make) {}

  [[nodiscard]] State forward(const State&, StepContext& context) const override {
    State state;
    for (const Text& text : texts_) {
      if (context.has_array(text.tokens())) {
        const Within tokens(context, text);
        const at::Tensor x =
            towers_.of(text).forward(context.array(text.tokens()), nullptr, context);
        state.set(text.name, x, context.dims(embed_));
      }
    }
    return state;
  }

private:
  Axis embed_;
  std::vector<Text> texts_;
  Towers<BertEmbedding> towers_;
};

/// A layer of each tower.
class TowersLayer : public Block {
public:
  template <class Make>
  TowersLayer(Builder& builder, const RetrieverConfig& c, const Make& make)
      : texts_(texts_of(c))
      , towers_(builder, c, make) {}

  [[nodiscard]] State forward(const State& state, StepContext& context) const override {
    State next = state;
    for (const Text& text : texts_) {
      if (state.has(text.name)) {
        const Within tokens(context, text);
        const auto& [x, dims] = state[text.name];
        const State made = towers_.of(text).forward({"hidden", x, dims}, context);
        next.set(text.name, made["hidden"].value, dims);
      }
    }
    return next;
  }

private:
  std::vector<Text> texts_;
  Towers<Block> towers_;
};

/// The end of a tower, behind its layers: a norm where they begin with one, and a projection.
class TowerEnd {
public:
  TowerEnd(Builder& builder, const RetrieverConfig& c, std::unique_ptr<NormPart> norm)
      : norm_(std::move(norm))
      , out_(embed_axis(c)) {
    if (c.projection_dim > 0) {
      out_ = {{"projection"}, c.projection_dim};
      projection_ = std::make_unique<Linear>(
          builder,
          LinearSpec{
              .in = embed_axis(c),
              .outs = {{"projection", out_}},
              .bias = true,
              .std = c.init_std,
              .fp8 = false}
      );
    }
  }

  [[nodiscard]] const Axis& out() const { return out_; }

  /// [seq, batch, embed] -> [batch, out]
  [[nodiscard]] at::Tensor forward(at::Tensor x, StepContext& context) const {
    x = norm_ == nullptr ? x : norm_->forward(x, context);
    x = projection_ == nullptr ? x : projection_->forward(x, context);
    return first_tokens(x, out_, context);
  }

private:
  std::unique_ptr<NormPart> norm_; // or null
  Axis out_;
  std::unique_ptr<Linear> projection_; // or null
};

class RetrieverHead : public Block {
public:
  template <class Make>
  RetrieverHead(Builder& builder, const RetrieverConfig& c, const Make& make)
      : texts_(texts_of(c))
      , towers_(builder, c, make)
      , spec_{
            .scale = c.score_scaling ? 1 / std::sqrt(static_cast<double>(c.hidden)) : 1,
            .report_top = c.report_top} {}

  /// Without labels "query_embedding" and "context_embedding" [batch, dim] of the texts that the
  /// batch has.
  [[nodiscard]] State forward(const State& state, StepContext& context) const override {
    if (context.mode().tokens_apart) { // all that it adds is of whole samples
      return {};
    }
    const bool labels = context.has_array("labels");
    State made;
    std::vector<at::Tensor> embeddings;
    for (const Text& text : texts_) {
      if (!state.has(text.name) || (!labels && text.number > 1)) {
        continue;
      }
      const Within tokens(context, text);
      const TowerEnd& end = towers_.of(text);
      embeddings.push_back(end.forward(state[text.name].value, context));
      const Axis batch{axis::batch, context.batch().batch};
      made.set(text.name + "_embedding", embeddings.back(), {batch, end.out()});
    }
    if (!labels) {
      return made;
    }
    if (embeddings.size() != texts_.size()) {
      throw Error(
          "a retriever learns from queries and contexts together, and the batch lacks some of them",
          "choose a corpus of pairs: data.use = \"ict\" or \"pairs\"",
          exit_code::data
      );
    }
    const at::Tensor queries = embeddings.front();
    embeddings.erase(embeddings.begin());
    add_retrieval_losses(queries, embeddings, spec_, context);
    return {};
  }

private:
  std::vector<Text> texts_;
  Towers<TowerEnd> towers_;
  RetrievalSpec spec_;
};

/// Two towers of encoders; both pass through each stage of a pipeline side by side.
///
/// Parameters: those of a decoder (nn/decoder.hpp) without a head's weight, and BERT's token types,
/// for each tower; T is "query." or "context.", and nothing for shared towers:
///
///   embedding.T*        word, position, token_type, norm
///   layers.N.T*         attention, mlp and their norms
///   head.T norm.*       [hidden]                           norm_placement = "pre"
///   head.T projection.* [projection_dim, hidden], [projection_dim]   projection_dim > 0
///
/// Source:  arXiv:1906.00300, arXiv:2004.04906
class Retriever : public Decoder {
public:
  using Config = RetrieverConfig;

  static void fields(Fields<Config>& f) {
    encoder_fields(f);
    f.add(
        "shared_towers",
        &Config::shared_towers,
        "queries and contexts pass through the same encoder; else each has its own"
    );
    f.add(
         "query_length",
         &Config::query_length,
         "tokens of a query; as many as of a context (seq_length) if absent"
    )
        .at_least(3)
        .unit("tokens");
    f.add(
         "hard_negatives",
         &Config::hard_negatives,
         "further contexts of each sample, which are wrong and look right; the corpus gives them"
    )
        .range(0, 64);
    f.add(
         "projection_dim",
         &Config::projection_dim,
         "width of embeddings, made of the first token by a linear layer; 0: hidden, without one"
    )
        .at_least(0);
    f.add(
        "score_scaling",
        &Config::score_scaling,
        "scores are divided by the square root of hidden, as in Megatron-LM"
    );
    f.add(
         "report_top",
         &Config::report_top,
         "accuracies are reported for so many best contexts of a microbatch"
    )
        .at_least(1);
    refuse_head(f, "tied", [](const Config& c) { return c.tied; });
    refuse_head(f, "head_bias", [](const Config& c) { return !c.head_bias; });
    refuse_head(f, "logit_scale", [](const Config& c) { return c.logit_scale == 1; });
    refuse_head(f, "logit_cap", [](const Config& c) { return !c.logit_cap; });
    refuse_head(f, "mtp_layers", [](const Config& c) { return c.mtp_layers == 0; });
  }

  /// The loss of a query whose only context is its own is 0, whatever the weights are.
  static void conditions(Conditions& c) {
    if (c.facts().trains && c.sound({"batch.micro", "model.hard_negatives"}) &&
        c.integer("batch.micro") == 1 && c.degree(MeshAxis::dp) == 1 &&
        c.integer("model.hard_negatives") == 0) {
      c.report(
          {"batch.micro", "batch.global"},
          "batch.micro is 1 on one data-parallel rank: a query then has no context but its own, and "
          "nothing is learned",
          "the other samples of a microbatch are the wrong contexts: raise batch.micro or the "
          "data-parallel ranks, or give samples their own by model.hard_negatives"
      );
    }
  }

  static Table scaled(const Config& whole, const ModelScale& to) {
    Table sizes = mh::scaled(static_cast<const DecoderConfig&>(whole), to);
    if (whole.query_length) {
      sizes.set("query_length", std::min(*whole.query_length, to.seq_length));
    }
    if (whole.projection_dim > 0) {
      sizes.set("projection_dim", to.narrowed(whole.projection_dim, whole.hidden));
    }
    return sizes;
  }

  static HfMapping hugging_face_config() { return retriever_mapping(); }

  Retriever(const Config& config, const Args& args)
      : Decoder(config, args)
      , own_(config)
      , seq_length_(args.seq_length) {
    static_cast<DecoderConfig&>(own_) = Decoder::config(); // with absent fields filled in
    own_.query_length = config.query_length.value_or(seq_length_);
    if (*own_.query_length > seq_length_) {
      throw Error(
          "model.query_length " + std::to_string(*own_.query_length) + " is beyond seq_length " +
              std::to_string(seq_length_) + ", which is how many positions both towers have",
          "raise model.seq_length, or lower model.query_length",
          exit_code::recipe
      );
    }
  }

  [[nodiscard]] Sequences sequences() const override {
    Sequences sequences{{kQuery, *own_.query_length}};
    for (int64_t i = 1; i <= own_.hard_negatives; ++i) {
      sequences.emplace(negative_name(i), seq_length_);
    }
    return sequences;
  }

  [[nodiscard]] std::vector<ArraySpec> arrays(int64_t seq_length) const override {
    using enum ArraySpec::Type;
    std::vector<ArraySpec> arrays{
        {"tokens", int64, axis::seq, seq_length},
        {"labels", int64, {"contexts"}, 1 + own_.hard_negatives},
        {"pair_mask", float32, axis::batch, 1}};
    if (own_.hard_negatives > 0) {
      arrays.push_back({"negative_mask", float32, {"negatives"}, own_.hard_negatives});
    }
    return arrays;
  }

  [[nodiscard]] std::vector<std::string> outputs() const override {
    return {"query_embedding", "context_embedding"};
  }

  [[nodiscard]] std::unique_ptr<Block> embedding(Builder& builder) const override {
    return std::make_unique<FirstTowers>(builder, own_, [this](Builder& b, std::string_view tower) {
      auto norm_of_sum = own_.post() ? b.below("norm", [&] { return norm(b); }) : nullptr;
      const std::string site = std::string(tower) + (tower.empty() ? "" : " ") + "embedding";
      return std::make_unique<BertEmbedding>(b, own_, seq_length_, std::move(norm_of_sum), site);
    });
  }

  [[nodiscard]] std::unique_ptr<Block> layer(int64_t index, Builder& builder) const override {
    return std::make_unique<TowersLayer>(
        builder,
        own_,
        [this, index](Builder& b, std::string_view) { return Decoder::layer(index, b); }
    );
  }

  [[nodiscard]] std::unique_ptr<Block> head(Builder& builder) const override {
    return std::make_unique<RetrieverHead>(builder, own_, [this](Builder& b, std::string_view) {
      auto last = own_.post() ? nullptr : b.below("norm", [&] { return norm(b); });
      return std::make_unique<TowerEnd>(b, own_, std::move(last));
    });
  }

  [[nodiscard]] std::vector<HfTensor> hugging_face() const override {
    return retriever_names(own_);
  }

  [[nodiscard]] std::vector<Upcycled> upcycled() const override { return upcycled_towers(own_); }

private:
  template <class Absent>
  static void refuse_head(Fields<Config>& f, const char* field, const Absent& absent) {
    f.check(field, [absent](const Config& c) -> std::string {
      return absent(c) ? "" : "a retriever has no output layer of the vocabulary; leave it out";
    });
  }

  Config own_;
  int64_t seq_length_;
};

} // namespace

void add_retriever(Registry& registry) {
  registry.add<Retriever>("retriever", "two encoders that find the context of a query among many");
}

} // namespace mh::bert
