// The model and its tokenizer.

#include "core/base/text.hpp"
#include "core/import/importer.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

namespace mh {

namespace {

/// Python's lists of 0 and 1 that are added and repeated: "([0]*3+[1]*2)*2".
class PatternReader {
public:
  explicit PatternReader(const std::string& text) {
    std::copy_if(text.begin(), text.end(), std::back_inserter(text_), [](char letter) {
      return letter != ' ';
    });
  }

  /// A letter for each entry; empty if the text is something else.
  [[nodiscard]] std::string read() {
    const std::string all = sum();
    return sound_ && at_ == text_.size() ? all : "";
  }

private:
  static constexpr size_t kMost = 10000;

  bool eat(char letter) {
    const bool there = at_ < text_.size() && text_[at_] == letter;
    at_ += there ? 1 : 0;
    return there;
  }

  std::string sum() {
    std::string all = product();
    while (sound_ && eat('+')) {
      all += product();
    }
    return all;
  }

  std::string product() {
    std::string all = atom();
    while (sound_ && eat('*')) {
      size_t times = 0;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && times < kMost) {
        times = 10 * times + static_cast<size_t>(text_[at_++] - '0');
      }
      const std::string part = all;
      sound_ = sound_ && times > 0 && times * part.size() <= kMost;
      all.clear();
      for (size_t i = 0; sound_ && i < times; ++i) {
        all += part;
      }
    }
    return all;
  }

  std::string atom() {
    std::string all;
    if (++depth_ > 20) {
      sound_ = false;
    } else if (eat('(')) {
      all = sum();
      sound_ = sound_ && eat(')');
    } else {
      sound_ = sound_ && eat('[');
      do {
        all += eat('1') ? '1' : '0';
        sound_ = sound_ && (all.back() == '1' || eat('0'));
      } while (sound_ && eat(','));
      sound_ = sound_ && eat(']');
    }
    --depth_;
    return all;
  }

  std::string text_;
  size_t at_ = 0;
  int depth_ = 0;
  bool sound_ = true;
};

} // namespace

void Importer::model() {
  const bool gated = given_.has("swiglu");
  const char* activation = gated                               ? "swiglu"
                           : given_.has("squared-relu")        ? "relu2"
                           : given_.has("openai-gelu")         ? "gelu_tanh"
                           : given_.has("no-bias-gelu-fusion") ? "gelu"
                                                               : "gelu_tanh";
  const char* by = gated                        ? "swiglu"
                   : given_.has("squared-relu") ? "squared-relu"
                   : given_.has("openai-gelu")  ? "openai-gelu"
                                                : "no-bias-gelu-fusion";
  set_from("model.activation", activation, by);
  const int64_t hidden = integer("model.hidden", 0);
  const int64_t heads = integer("model.heads", 0);
  if (gated && !is_set("model.ffn_hidden")) {
    set("model.ffn_hidden", std::max<int64_t>(64, 8 * hidden / 3 / 64 * 64), kMegatronDefault);
  }
  if (!is_set("model.norm")) {
    set("model.norm", "layernorm", kMegatronDefault);
  }
  if (!is_set("model.norm_eps")) {
    set("model.norm_eps", 1e-5, kMegatronDefault);
  }
  for (const char* key : {"model.bias", "model.tied"}) {
    if (!is_set(key)) {
      set(key, true, kMegatronDefault);
    }
  }
  if (given_.has("group-query-attention")) {
    set_from("model.kv_heads", given_.integer("num-query-groups", 1), "num-query-groups");
  } else if (given_.has("num-query-groups")) {
    comment("--num-query-groups: without --group-query-attention it says nothing");
  }
  if (heads > 0 && hidden % heads != 0 && !is_set("model.head_dim")) {
    refuse(
        "--hidden-size " + std::to_string(hidden) + " is not divisible by --num-attention-heads " +
            std::to_string(heads),
        "--kv-channels gives heads another size"
    );
  }
  if (given_.has("qk-layernorm") && !given_.has("multi-latent-attention")) {
    set("model.qk_norm", true, "--qk-layernorm");
  }
  window();
}

void Importer::latent_attention() {
  const std::tuple<const char*, const char*, int64_t> sizes[] = {
      {"kv-lora-rank", "model.kv_rank", 32},
      {"qk-head-dim", "model.head_dim", 128},
      {"qk-pos-emb-head-dim", "model.rope_head_dim", 64},
      {"v-head-dim", "model.v_head_dim", 128}};
  for (const auto& [argument, key, otherwise] : sizes) {
    set_from(key, given_.integer(argument, otherwise), argument);
  }
  if (given_.has("q-lora-rank")) {
    set_from("model.q_rank", given_.integer("q-lora-rank", 0), "q-lora-rank");
  }
  if (!given_.has("disable-bias-linear")) {
    refuse(
        "--multi-latent-attention without --disable-bias-linear gives the linear layer behind the "
        "attention a bias, which latent attention does not have here",
        "add --disable-bias-linear"
    );
  }
  if (!given_.has("qk-layernorm")) {
    comment("--multi-latent-attention without --qk-layernorm: no equivalent, training differs: "
            "latents always pass a norm");
  }
  const double factor = given_.number("rotary-scaling-factor", 1);
  if (given_.text("rope-type", "yarn") != "yarn" || factor <= 1) {
    return;
  }
  set("model.rope_scaling", "yarn", given_.has("rope-type") ? "--rope-type yarn" : kMegatronDefault
  );
  set_from("model.rope_factor", number_value(factor), "rotary-scaling-factor");
  set_from(
      "model.rope_original_length",
      given_.integer("yarn-original-max-position-embeddings", 4096),
      "yarn-original-max-position-embeddings"
  );
  const double all = given_.number("mscale-all-dim", 0);
  const double rotated = given_.number("mscale", 1);
  if (all > 0) {
    set_from("model.rope_mscale", number_value(rotated), "mscale");
    set_from("model.rope_mscale_all_dim", number_value(all), "mscale-all-dim");
  } else {
    set_from("model.rope_attention", 0.1 * rotated * std::log(factor) + 1, "mscale");
  }
}

void Importer::mixture() {
  set_from("model.use", "moe", "num-experts");
  if (!is_set("model.experts_per_token")) {
    set("model.experts_per_token", 2, kMegatronDefault);
  }
  if (given_.has("moe-router-pre-softmax")) {
    set("model.router", "softmax_topk", "--moe-router-pre-softmax");
  }
  const std::pair<const char*, const char*> kinds[] = {
      {"aux_loss", "auxiliary"},
      {"seq_aux_loss", "sequence"},
      {"global_aux_loss", "global"},
      {"none", "none"}};
  const GivenArgument* type = given_.find("moe-router-load-balancing-type");
  Value::Array balance;
  for (const std::string& word :
       type != nullptr ? type->values : std::vector<std::string>{"aux_loss"}) {
    const auto* found = std::find_if(std::begin(kinds), std::end(kinds), [&](const auto& pair) {
      return word == pair.first;
    });
    if (found == std::end(kinds)) {
      refuse(
          "--moe-router-load-balancing-type " + word +
          " has no equivalent, expected aux_loss, seq_aux_loss, global_aux_loss or none"
      );
    }
    if (word != "none") {
      balance.emplace_back(found->second);
    }
  }
  if (given_.has("moe-router-enable-expert-bias")) {
    balance.emplace_back("bias");
  }
  if (balance.empty()) {
    balance.emplace_back("none");
  }
  set_from("model.balance", std::move(balance), "moe-router-load-balancing-type");
  if (const GivenArgument* weights = given_.find("moe-aux-loss-coeff")) {
    const auto& each = weights->values;
    if (std::any_of(each.begin(), each.end(), [&](const auto& one) { return one != each[0]; })) {
      refuse(weights->text() + " gives losses different weights; model.balance_weight is of all");
    }
  }
  set_from("model.balance_weight", given_.number("moe-aux-loss-coeff", 0), "moe-aux-loss-coeff");
  if (is_set("model.capacity_factor") && !is_set("model.capacity_drop")) {
    set("model.capacity_drop", "probability", kMegatronDefault);
  }
  const GivenArgument* freq = given_.find("moe-layer-freq");
  if (freq != nullptr && pattern() == nullptr) {
    mixture_layers(*freq);
  }
}

void Importer::mixture_layers(const GivenArgument& freq) {
  const std::string& text = freq.values.front();
  if (text.find('[') == std::string::npos) {
    set("model.moe_every", number_value(argument_number(freq, text)), freq.text());
    return;
  }
  const std::string layers = PatternReader(text).read();
  const auto count = static_cast<int64_t>(layers.size());
  if (layers.empty() || (is_set("model.layers") && count != integer("model.layers", 0))) {
    refuse(
        freq.text() + " is no list of a 0 or 1 for each layer",
        "expected as in --moe-layer-freq '[0]*3+[1]*58'"
    );
  }
  const size_t dense = std::min(layers.find('1'), layers.size());
  if (layers.find('0', dense) == std::string::npos) {
    set("model.first_dense", static_cast<int64_t>(dense), freq.text());
    return;
  }
  Value::Array pattern;
  for (const char layer : layers) {
    pattern.emplace_back(layer == '1' ? "moe" : "dense");
  }
  set("model.moe_pattern", std::move(pattern), freq.text());
}

const GivenArgument* Importer::pattern() const {
  const GivenArgument* given = given_.find("hybrid-layer-pattern");
  return given != nullptr ? given : given_.find("hybrid-override-pattern");
}

void Importer::hybrid(const GivenArgument& given) {
  std::string letters = given.values.front();
  if (letters.find('/') != std::string::npos) {
    refuse(
        given.text() + " gives multi-token prediction layers of its own, which have no equivalent",
        "leave out what follows the first /"
    );
  }
  if (letters.find('|') != std::string::npos) {
    comment(given.text() + ": stages are cut by cost; parallel.pipeline_layout writes them out");
    std::erase(letters, '|');
  }
  const size_t wrong = letters.find_first_not_of("M*-E");
  if (letters.empty() || wrong != std::string::npos) {
    refuse(
        given.text() + (letters.empty() ? " has no layer" : " has a layer ") +
            (letters.empty() ? "" : letters.substr(wrong, 1)),
        "expected M (Mamba-2), * (attention), - (feed-forward) and E (mixture of experts)"
    );
  }
  const auto layers = static_cast<int64_t>(letters.size());
  if (integer("model.layers", layers) != layers) {
    refuse(
        given.text() + " has " + std::to_string(layers) + " layers, but --num-layers is " +
        std::to_string(integer("model.layers", layers))
    );
  }
  set("model.use", "hybrid", given.text());
  set("model.pattern", letters, given.text());
  set("model.layers", layers, given.text());
  comment(
      given.text() +
      ": training differs: initial weights of each layer's last linear layer are divided "
      "by sqrt(2 layers), those of Megatron-LM's hybrids by sqrt(layers)"
  );
  if (letters.find('M') != std::string::npos && !is_set("model.mamba_groups")) {
    set("model.mamba_groups", 8, kMegatronDefault);
  }
}

void Importer::window() {
  const GivenArgument* given = given_.find("window-size");
  if (given == nullptr) {
    return;
  }
  const auto sides = parts_of(given->values.front(), ',');
  const double left = sides.empty() ? -1 : argument_number(*given, sides.front());
  if (sides.size() != 2 || (sides[1] != "0" && sides[1] != "-1")) {
    refuse(given->text() + " is no window that looks back, expected as in --window-size 1023,0");
  }
  if (left >= 0) {
    set("model.window", number_value(left + 1), given->text());
  }
}

void Importer::positions() {
  std::string kind = given_.text("position-embedding-type", "learned_absolute");
  std::string by = "position-embedding-type";
  if (!given_.has(by) && given_.has("use-rotary-position-embeddings")) {
    kind = "rope";
    by = "use-rotary-position-embeddings";
  } else if (!given_.has(by) && given_.has("no-position-embedding")) {
    kind = "none";
    by = "no-position-embedding";
  }
  const bool rotary = kind == "rope" || kind == "yarn";
  if (kind != "learned_absolute" && kind != "none" && !rotary) {
    refuse(
        "--position-embedding-type " + kind +
        " has no equivalent, expected learned_absolute, rope, yarn or none"
    );
  }
  set_from("model.positions", rotary ? "rope" : kind == "none" ? "none" : "learned", by);
  const bool rms = result_.tree.find_path("model.norm")->as_string() == "rmsnorm";
  set("model.use",
      rotary && rms ? "llama" : "gpt",
      rotary && rms ? "rotary positions and RMSNorm" : "the nearest family");
  if (given_.has("num-experts")) {
    mixture();
  }
  if (const GivenArgument* layers = pattern()) {
    hybrid(*layers);
  }
  if (const GivenArgument* spec = given_.find("spec"); spec != nullptr && pattern() == nullptr) {
    comment(spec->text() + ": no equivalent, training differs: a plugin says what layers are");
  }
  const int64_t tokens = integer("model.seq_length", 0);
  const int64_t most = given_.integer("max-position-embeddings", tokens);
  if (most < tokens) {
    refuse(
        "--max-position-embeddings " + std::to_string(most) + " is below --seq-length " +
        std::to_string(tokens)
    );
  }
  if (most > tokens && kind == "learned_absolute") {
    comment(
        "--max-position-embeddings " + std::to_string(most) +
        ": the model has as many learned positions as --seq-length"
    );
  }
  if (given_.has("multi-latent-attention") && !rotary) {
    refuse(
        "--multi-latent-attention rotates queries and keys, and --position-embedding-type " + kind +
            " adds positions of another kind, for which there is no place",
        "give --position-embedding-type rope"
    );
  }
  if (is_set("model.qk_norm") && !rms) {
    set("model.qk_norm_kind", "layernorm", "--qk-layernorm, of the kind of --normalization");
  }
  if (!rotary) {
    return;
  }
  rotating_layers();
  if (!is_set("model.rope_base")) {
    set("model.rope_base", 10000.0, kMegatronDefault);
  }
  if (given_.has("rotary-interleaved") && !given_.has("multi-latent-attention")) {
    set_from("model.rope_pairs", "adjacent", "rotary-interleaved");
  }
  const bool llama = given_.has("use-rope-scaling");
  if (given_.has("multi-latent-attention")) {
    latent_attention();
  } else if (llama || kind == "yarn") {
    const char* factor = llama ? "rope-scaling-factor" : "rotary-scaling-factor";
    set("model.rope_scaling", llama ? "llama3" : "yarn", llama ? "--use-rope-scaling" : "--" + by);
    set_from("model.rope_factor", given_.number(factor, llama ? 8 : 1), factor);
  } else if (given_.has("rotary-seq-len-interpolation-factor")) {
    const char* factor = "rotary-seq-len-interpolation-factor";
    set_from("model.rope_scaling", "linear", factor);
    set_from("model.rope_factor", given_.number(factor, 1), factor);
  }
}

/// Every so many layers one does not rotate, or a list has a 1 for those that do not.
void Importer::rotating_layers() {
  const GivenArgument* freq = given_.find("no-rope-freq");
  if (freq == nullptr) {
    return;
  }
  const std::string& text = freq->values.front();
  std::string layers;
  if (text.find('[') != std::string::npos) {
    layers = PatternReader(text).read();
  } else if (const double every = argument_number(*freq, text); every >= 1) {
    layers = std::string(static_cast<size_t>(every) - 1, '0') + "1";
  }
  if (layers.find('0') == std::string::npos) {
    refuse(
        freq->text() + " leaves no layer that rotates",
        "expected as in --no-rope-freq 4, or '([0]*3+[1])*8' with a 0 or 1 for each layer"
    );
  }
  Value::Array pattern;
  for (const char layer : layers) {
    pattern.emplace_back(layer == '1' ? "none" : "rope");
  }
  set("model.rope_pattern", std::move(pattern), freq->text());
}

/// Its ids behind the vocabulary's file.
///
/// Source:  megatron-core 0.16.1, tokenizers/text/utils/build_tokenizer.py; with --legacy-tokenizer,
///          and in older versions, megatron/training/tokenizer/tokenizer.py
void Importer::word_pieces(const std::string& type) {
  constexpr int64_t kSentinels = 100; // BertWordPieceCase adds them by itself
  const bool cased = type == "BertWordPieceCase", own = given_.has("legacy-tokenizer");
  set_from("tokenizer.lower_case", !cased, "tokenizer-type");
  if (own) {
    set("tokenizer.bos_eos", true, "--legacy-tokenizer");
  } else {
    comment(
        "tokenizer.bos_eos = true adds the [BOS] and [EOS] that older versions of Megatron-LM have "
        "behind the words of --vocab-file"
    );
  }
  if (cased && !own) {
    set("tokenizer.extra_ids", kSentinels, "--tokenizer-type BertWordPieceCase");
  } else if (given_.integer("vocab-extra-ids", 0) > 0) {
    set_from("tokenizer.extra_ids", given_.integer("vocab-extra-ids", 0), "vocab-extra-ids");
  }
}

bool Importer::tokenizer_of_file(const std::string& type) {
  const struct {
    std::string_view type, use, file;
  } types[] = {
      {"HuggingFaceTokenizer", "hf", "tokenizer-model"},
      {"Llama2Tokenizer", "sentencepiece", "tokenizer-model"},
      {"SentencePieceTokenizer", "sentencepiece", "tokenizer-model"},
      {"GPTSentencePieceTokenizer", "sentencepiece", "tokenizer-model"},
      {"BertWordPieceCase", "wordpiece", "vocab-file"},
      {"BertWordPieceLowerCase", "wordpiece", "vocab-file"}};

  const auto* known = std::find_if(std::begin(types), std::end(types), [&](const auto& row) {
    return row.type == type && given_.has(row.file);
  });
  if (known == std::end(types)) {
    return false;
  }
  set_from("tokenizer.use", std::string(known->use), "tokenizer-type");
  set_from("tokenizer.path", given_.text(known->file), known->file);
  if (known->use == "wordpiece") {
    word_pieces(type);
  } else if (const int64_t extra = given_.integer("vocab-extra-ids", 0); extra > 0) {
    if (known->use == "hf") {
      comment(
          "--vocab-extra-ids " + std::to_string(extra) + ": the folder's own sentinels are taken"
      );
    } else {
      set_from("tokenizer.extra_ids", extra, "vocab-extra-ids");
    }
  }
  if (given_.has("vocab-size")) {
    comment(
        given_.find("vocab-size")->text() +
        ": the vocabulary is the tokenizer's; where its file "
        "is not at hand, tokenizer = { use = \"null\", vocab = " +
        given_.text("vocab-size") + " } plans without it"
    );
  }
  return true;
}

void Importer::tokenizer() {
  const std::string type = given_.text(
      "tokenizer-type",
      given_.has("merge-file")                 ? "GPT2BPETokenizer"
      : !decodes() && given_.has("vocab-file") ? "BertWordPieceLowerCase"
                                               : "NullTokenizer"
  );
  if (type == "GPT2BPETokenizer") {
    for (const char* file : {"vocab-file", "merge-file"}) {
      if (!given_.has(file)) {
        refuse("--tokenizer-type GPT2BPETokenizer needs --" + std::string(file));
      }
    }
    set_from(
        "tokenizer.use", "gpt2", given_.has("tokenizer-type") ? "tokenizer-type" : "merge-file"
    );
    set_from("tokenizer.vocab", given_.text("vocab-file"), "vocab-file");
    set_from("tokenizer.merges", given_.text("merge-file"), "merge-file");
    return;
  }
  if (tokenizer_of_file(type)) {
    return;
  }
  if (!given_.has("vocab-size")) {
    refuse(
        type == "NullTokenizer"
            ? "--vocab-size is missing, and no other argument says how many ids there are"
            : "--tokenizer-type " + type + " has no equivalent",
        "add --vocab-size N: the recipe then reads ids, as megahost data inspect shows them"
    );
  }
  set_from("tokenizer.use", "null", given_.has("tokenizer-type") ? "tokenizer-type" : "vocab-size");
  set_from("tokenizer.vocab", given_.integer("vocab-size", 0), "vocab-size");
  if (type != "NullTokenizer") {
    comment(
        "--tokenizer-type " + type + ": ids are read as they are; text needs a tokenizer plugin"
    );
  }
}

} // namespace mh
