// BERT, T5 and retrievers: their models and their corpora.

#include "core/import/importer.hpp"

#include <utility>

namespace mh {

void Importer::bert() {
  set("model.use", "bert", command_.program);
  set("model.norm_placement", "pre", "BERT of Megatron-LM");
  set("model.head_activation", "gelu", "BERT of Megatron-LM");
  if (given_.has("bert-no-binary-head")) {
    set("model.pair_head", false, "--bert-no-binary-head");
    set("model.token_types", 0, "--bert-no-binary-head");
  }
  set("model.scaled_init", true, kMegatronDefault);
  encoder_positions("BERT");
}

void Importer::encoder_positions(const char* model) const {
  if (given_.text("position-embedding-type", "learned_absolute") != "learned_absolute") {
    refuse(
        given_.find("position-embedding-type")->text() + " has no equivalent for " + model +
        ", expected learned_absolute"
    );
  }
}

void Importer::retriever() {
  set("model.use", "retriever", command_.program);
  set("model.norm_placement", "pre", "BERT of Megatron-LM");
  set("model.scaled_init", true, kMegatronDefault);
  encoder_positions("a retriever");
  set("model.shared_towers",
      given_.has("biencoder-shared-query-context-model"),
      given_.has("biencoder-shared-query-context-model") ? "--biencoder-shared-query-context-model"
                                                         : kMegatronDefault);
  const char* width = // the head of ICT's first version
      given_.has("biencoder-projection-dim") || !given_.has("ict-head-size")
          ? "biencoder-projection-dim"
          : "ict-head-size";
  set_from("model.projection_dim", given_.integer(width, 0), width);
  if (given_.has("biencoder-projection-dim") && given_.has("ict-head-size")) {
    comment(
        given_.find("ict-head-size")->text() + ": --biencoder-projection-dim says the width of "
                                               "embeddings"
    );
  }
  set("model.score_scaling",
      given_.has("retriever-score-scaling"),
      given_.has("retriever-score-scaling") ? "--retriever-score-scaling" : kMegatronDefault);
  if (const GivenArgument* top = given_.find("retriever-report-topk-accuracies")) {
    Value::Array numbers;
    for (const std::string& one : top->values) {
      numbers.push_back(number_value(argument_number(*top, one)));
    }
    set("model.report_top", std::move(numbers), top->text());
  }
}

void Importer::t5() {
  set("model.use", "t5", command_.program);
  const auto either = [&](const char* one, const char* other) {
    return given_.has(one) ? one : other;
  };
  const char* encoder = either("encoder-num-layers", "num-layers");
  const char* decoder = either("decoder-num-layers", encoder);
  set_from("model.encoder_layers", given_.integer(encoder, 0), encoder);
  set_from("model.layers", given_.integer(decoder, 0), decoder);
  if (!given_.has("decoder-seq-length")) {
    refuse("--decoder-seq-length is missing, without which T5 has no decoder");
  }
  const char* length = either("encoder-seq-length", "seq-length");
  set_from("model.encoder_length", given_.integer(length, 0), length);
  set_from("model.seq_length", given_.integer("decoder-seq-length", 0), "decoder-seq-length");
  if (!is_set("model.init_std")) { // T5's own is another for each layer
    constexpr double kInitStd = 0.02;
    set("model.init_std", kInitStd, kMegatronDefault);
  }
  set("model.scaled_init", true, kMegatronDefault);
  const std::string kind = given_.text("position-embedding-type", "learned_absolute");
  if (kind == "relative") {
    comment("--position-embedding-type relative: training differs: scores have no factor 1 / "
            "sqrt(head_dim), which T5 leaves out with relative positions and Megatron-LM does not");
    const std::pair<const char*, const char*> sizes[] = {
        {"relative-attention-num-buckets", "model.buckets"},
        {"relative-attention-max-distance", "model.max_distance"}};
    set_from("model.positions", kind, "position-embedding-type");
    for (const auto& [argument, key] : sizes) {
      if (given_.has(argument)) {
        set_from(key, given_.integer(argument, 0), argument);
      }
    }
  } else if (kind == "learned_absolute" || kind == "rope") {
    set_from("model.positions", kind == "rope" ? kind : "learned", "position-embedding-type");
    Table& model = result_.tree.as_table().find("model")->as_table();
    if (is_set("model.rope_base")) {
      model.erase("rope_base");
      comment(
          given_.find("rotary-base")->text() +
          ": T5 of Megatron-LM rotates by base 10000 whatever it says"
      );
    }
    if (given_.number("rotary-percent", 1) != 1) {
      refuse(given_.find("rotary-percent")->text() + " has no equivalent for T5, expected 1");
    }
    model.erase("rope_share");
  } else {
    refuse(
        "--position-embedding-type " + kind +
        " has no equivalent for T5, expected learned_absolute, relative or rope"
    );
  }
}

void Importer::ict_data() {
  set_from("data.query_in_block", given_.number("query-in-block-prob", 0.1), "query-in-block-prob");
  if (given_.has("use-one-sent-docs")) {
    set("data.one_sentence", true, "--use-one-sent-docs");
  }
  if (given_.has("titles-data-path")) {
    set_from("data.titles", Value::Array{given_.text("titles-data-path")}, "titles-data-path");
  }
}

/// Source:  Megatron-LM, pretrain_bert.py and pretrain_t5.py, train_valid_test_datasets_provider
void Importer::masked_data(const GivenArgument& paths) {
  const char* program_says = trains_ == Trains::bert ? "pretrain_bert.py" : "pretrain_t5.py";
  blended_data(paths);
  if (trains_ == Trains::ict) {
    set("data.use", "ict", command_.program);
    if (is_set("data.weights")) {
      refuse(paths.text() + ": weights of corpora have no equivalent for retrievers");
    }
    ict_data();
    comment(
        "samples are drawn by megahost's own rule, with Megatron-LM's probabilities: they are not "
        "its very samples"
    );
    return;
  }
  const bool bert = trains_ == Trains::bert;
  set("data.use", bert ? "bert" : "t5", command_.program);
  set("data.order", "megatron", "the samples of Megatron-LM");
  loader();
  set_from("data.mask_prob", given_.number("mask-prob", 0.15), "mask-prob");
  set_from("data.short_seq_prob", given_.number("short-seq-prob", 0.1), "short-seq-prob");
  set("data.whole_words", true, program_says);
  set("data.max_ngram", bert ? 3 : 10, program_says);
  if (bert) {
    set("data.pair",
        given_.has("bert-no-binary-head") ? "none" : "order",
        given_.has("bert-no-binary-head") ? "--bert-no-binary-head"
                                          : "BERT of Megatron-LM: sentences in order, or swapped");
  }
  if (given_.has("data-cache-path")) {
    comment(
        given_.find("data-cache-path")->text() +
        ": each rank makes the order of sentences in memory"
    );
  }
}

} // namespace mh
