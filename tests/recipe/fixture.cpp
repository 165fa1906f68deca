#include "fixture.hpp"

#include "megahost/recompute.hpp"
#include "plugins/optimizers/schedules/keys.hpp"
#include "plugins/parallel/context/keys.hpp"
#include "plugins/parallel/expert/keys.hpp"
#include "plugins/parallel/pipeline/keys.hpp"
#include "plugins/parallel/sequence/keys.hpp"
#include "plugins/parallel/tensor/keys.hpp"
#include "plugins/parallel/zero/keys.hpp"

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

namespace mh::test {

namespace {

struct Decoder {
  int64_t layers = 12, hidden = 768, heads = 12;
  std::optional<int64_t> kv_heads, head_dim, ffn_hidden, vocab;
  std::string norm = "layernorm", norm_placement = "pre", activation = "gelu_tanh",
              positions = "learned", rope_scaling = "none", qk_norm_over = "head";
  double norm_eps = 1e-5, rope_base = 10000, rope_share = 1, rope_factor = 1, rope_low_freq = 1,
         rope_high_freq = 4, dropout = 0, attention_dropout = 0, init_std = 0.02;
  int64_t rope_original_length = 8192;
  bool bias = true, tied = true, qk_norm = false, parallel_residual = false, scaled_init = true;
  bool shared_norm = false, head_bias = false, sinks = false, rope_truncate = true;
  double logit_scale = 1;
  std::string rope_pairs = "halves";
  std::optional<bool> qkv_bias;
  std::optional<int64_t> window;
  std::vector<std::string> window_pattern;
  std::optional<double> embedding_std, score_cap, logit_cap;
  int64_t mtp_layers = 0;
  double mtp_loss_weight = 0.1;
};

struct Mixture : Decoder {
  int64_t experts = 8, experts_per_token = 2, moe_every = 1, router_groups = 1,
          router_groups_chosen = 1;
  std::optional<int64_t> expert_hidden, shared_hidden;
  int64_t first_dense = 0;
  std::optional<int64_t> kv_rank, q_rank, rope_head_dim, v_head_dim; // fields of latent attention
  std::string router = "topk_softmax";
  std::optional<bool> router_normalise;
  std::vector<std::string> balance{"auxiliary"};
  double router_scale = 1, balance_weight = 1e-2, balance_bias_rate = 1e-3, z_weight = 0;
  std::optional<double> capacity_factor;
};

Schema mixture_schema() {
  Fields<Mixture> f;
  f.add("experts", &Mixture::experts, "feed-forwards of a layer").at_least(1);
  f.add("experts_per_token", &Mixture::experts_per_token, "that a token passes").at_least(1);
  f.add("expert_hidden", &Mixture::expert_hidden, "hidden units of an expert").at_least(1);
  f.add("shared_hidden", &Mixture::shared_hidden, "in addition to the experts").at_least(1);
  f.add("moe_every", &Mixture::moe_every, "layers with experts").at_least(1);
  f.add("first_dense", &Mixture::first_dense, "layers without experts").at_least(0);
  f.add("kv_rank", &Mixture::kv_rank, "latent of keys and values").at_least(1);
  f.add("q_rank", &Mixture::q_rank, "latent of queries").at_least(1);
  f.add("rope_head_dim", &Mixture::rope_head_dim, "rotated elements").at_least(2);
  f.add("v_head_dim", &Mixture::v_head_dim, "elements of a value").at_least(1);
  f.add("router", &Mixture::router, "weights of a token's experts");
  f.add("router_normalise", &Mixture::router_normalise, "divide by their sum");
  f.add("router_scale", &Mixture::router_scale, "factor").above(0);
  f.add("router_groups", &Mixture::router_groups, "groups of experts").at_least(1);
  f.add("router_groups_chosen", &Mixture::router_groups_chosen, "chosen first").at_least(1);
  f.add("balance", &Mixture::balance, "what keeps experts busy");
  f.add("balance_weight", &Mixture::balance_weight, "factor").at_least(0);
  f.add("balance_bias_rate", &Mixture::balance_bias_rate, "of the bias").above(0);
  f.add("z_weight", &Mixture::z_weight, "factor").at_least(0);
  f.add("capacity_factor", &Mixture::capacity_factor, "of an even share").above(0);
  return with_plugin(decoder_schema(), f.schema());
}

struct AdamW {
  std::vector<double> betas{0.9, 0.95};
  double eps = 1e-8;
};

struct Sgd {
  double momentum = 0;
};

struct Constant {
  using Config = schedules::WarmupConfig;

  static void fields(Fields<Config>& f) { schedules::warmup_fields(f); }

  static void conditions(Conditions& c) { schedules::conditions(c); }
};

struct Cosine : Constant {
  using Config = schedules::DecayConfig;

  static void fields(Fields<Config>& f) { schedules::decay_fields(f); }
};

struct Text {
  std::vector<std::string> paths{"corpus.txt"};
};

struct Gpt2Tokenizer {
  std::string vocab, merges;
};

struct Mock {
  int64_t samples = 1000;
};

struct NullTokenizer {
  int64_t vocab = 0;
};

struct Selective {
  std::vector<std::string> parts{"core_attention"};
};

} // namespace

Schema decoder_schema() {
  Fields<Decoder> f;
  f.add("layers", &Decoder::layers, "transformer blocks").at_least(1);
  f.add("hidden", &Decoder::hidden, "width of the residual stream").at_least(1);
  f.add("heads", &Decoder::heads, "query heads").at_least(1);
  f.add("kv_heads", &Decoder::kv_heads, "key and value heads").at_least(1);
  f.add("head_dim", &Decoder::head_dim, "elements of a head").at_least(1);
  f.add("ffn_hidden", &Decoder::ffn_hidden, "hidden units of the feed-forward").at_least(1);
  f.add("vocab", &Decoder::vocab, "entries of the vocabulary").at_least(1);
  f.add("norm", &Decoder::norm, "norm").one_of({"layernorm", "layernorm_no_bias", "rmsnorm"});
  f.add("norm_placement", &Decoder::norm_placement, "where norms are");
  f.add("norm_eps", &Decoder::norm_eps, "added to the variance").above(0);
  f.add("parallel_residual", &Decoder::parallel_residual, "both parts read the same");
  f.add("shared_norm", &Decoder::shared_norm, "by one norm");
  f.add("head_bias", &Decoder::head_bias, "a bias of the output layer");
  f.add("logit_scale", &Decoder::logit_scale, "factor of logits").above(0);
  f.add("rope_pairs", &Decoder::rope_pairs, "what rotates").one_of({"halves", "adjacent"});
  f.add("embedding_std", &Decoder::embedding_std, "standard deviation of embeddings").at_least(0);
  f.add("score_cap", &Decoder::score_cap, "cap of scores").above(0);
  f.add("logit_cap", &Decoder::logit_cap, "cap of logits").above(0);
  f.add("mtp_layers", &Decoder::mtp_layers, "further tokens").at_least(0);
  f.add("mtp_loss_weight", &Decoder::mtp_loss_weight, "factor of their losses").above(0);
  f.add("sinks", &Decoder::sinks, "logits without a value");
  f.add("activation", &Decoder::activation, "of the feed-forward")
      .one_of({"gelu", "gelu_tanh", "relu2", "swiglu", "geglu", "swiglu_clamped"});
  f.add("positions", &Decoder::positions, "kind of positions").one_of({"learned", "rope", "none"});
  f.add("rope_base", &Decoder::rope_base, "base of the wavelengths").above(0);
  f.add("rope_share", &Decoder::rope_share, "share that is rotated").above(0).at_most(1);
  f.add("rope_scaling", &Decoder::rope_scaling, "scaling")
      .one_of({"none", "linear", "llama3", "yarn"});
  f.add("rope_truncate", &Decoder::rope_truncate, "bounds in whole pairs");
  f.add("rope_factor", &Decoder::rope_factor, "stretch").at_least(1);
  f.add("rope_low_freq", &Decoder::rope_low_freq, "fewest turns").above(0);
  f.add("rope_high_freq", &Decoder::rope_high_freq, "most turns").above(0);
  f.add("rope_original_length", &Decoder::rope_original_length, "first length").at_least(1);
  f.add("bias", &Decoder::bias, "biases");
  f.add("qkv_bias", &Decoder::qkv_bias, "biases of query, key and value");
  f.add("qk_norm", &Decoder::qk_norm, "norm of queries and keys");
  f.add("qk_norm_over", &Decoder::qk_norm_over, "what it is over");
  f.add("window", &Decoder::window, "tokens that a token sees").at_least(1);
  f.add("window_pattern", &Decoder::window_pattern, "layers with the window");
  f.add("tied", &Decoder::tied, "output layer shares the embedding");
  f.add("dropout", &Decoder::dropout, "dropout probability").at_least(0).below(1);
  f.add("attention_dropout", &Decoder::attention_dropout, "of attention").at_least(0).below(1);
  f.add("init_std", &Decoder::init_std, "of initial weights").at_least(0);
  f.add("scaled_init", &Decoder::scaled_init, "of branches");
  return f.schema();
}

Plugins::Plugins() {
  add(Kind::architecture, "gpt", decoder_schema());
  add(Kind::architecture, "llama", decoder_schema());
  add(Kind::architecture, "moe", mixture_schema());
  Fields<AdamW> adamw;
  adamw.add("betas", &AdamW::betas, "decay rates of the averages").at_least(0).below(1);
  adamw.add("eps", &AdamW::eps, "added to the root").at_least(0);
  add(Kind::optimizer, "adamw", adamw.schema());
  Fields<Sgd> sgd;
  sgd.add("momentum", &Sgd::momentum, "factor of the previous update").at_least(0).below(1);
  add(Kind::optimizer, "sgd", sgd.schema());
  declare<Constant>(Kind::lr_schedule, "constant");
  declare<Cosine>(Kind::lr_schedule, "cosine");
  Fields<Text> text;
  text.add("paths", &Text::paths, "files or folders").path();
  add(Kind::corpus, "text", text.schema());
  add(Kind::corpus, "indexed", text.schema());
  Fields<Mock> mock;
  mock.add("samples", &Mock::samples, "sequences in an epoch").at_least(1);
  add(Kind::corpus, "mock", mock.schema());
  add(Kind::tokenizer, "byte", Schema{});
  Fields<NullTokenizer> null;
  null.add("vocab", &NullTokenizer::vocab, "number of ids").required().at_least(1);
  add(Kind::tokenizer, "null", null.schema());
  Fields<Gpt2Tokenizer> gpt2;
  gpt2.add("vocab", &Gpt2Tokenizer::vocab, "file of tokens").path();
  gpt2.add("merges", &Gpt2Tokenizer::merges, "file of merges").path();
  add(Kind::tokenizer, "gpt2", gpt2.schema());
  add(Kind::recompute, "none", Schema{});
  add(Kind::recompute, "full", Schema{}).recomputes_blocks = true;
  Fields<Selective> selective;
  selective.add("parts", &Selective::parts, "parts that are computed again")
      .parts({kRecomputeParts.begin(), kRecomputeParts.end()});
  add(Kind::recompute, "selective", selective.schema());
  declare<tensor_parallel::Keys>(Kind::strategy, "tensor");
  declare<sequence_parallel::Keys>(Kind::strategy, "sequence");
  declare<context_parallel::Keys>(Kind::strategy, "context");
  declare<expert_parallel::Keys>(Kind::strategy, "expert");
  declare<zero_optimizer::Keys>(Kind::strategy, "zero");
  declare<pipeline::Keys>(Kind::strategy, "pipeline");
  declare<pipeline::OneForwardOneBackward>(Kind::pipeline_schedule, "1f1b");
  declare<pipeline::ZeroBubble>(Kind::pipeline_schedule, "zb-h1");
  declare<pipeline::ZeroBubbleVee>(Kind::pipeline_schedule, "zb-v");
  add(Kind::checkpoint_format, "native", Schema{});
  add(Kind::device, "cpu", Schema{}).planned = {
      .kernels = PlannedDevice::Kernels::cpu, .bf16 = false, .machine = ""};
  add(Kind::device, "cuda", Schema{});
}

Registry::Entry& Plugins::add(Kind kind, const std::string& name, Schema schema) {
  return schemas_.emplace_back(Registry::Entry{
      kind, name, "a " + name, plugin_, std::move(schema), {}});
}

PluginLookup Plugins::lookup() const {
  return {
      [this](Kind kind, const std::string& name) -> const Registry::Entry* {
        for (const Registry::Entry* entry : of(kind)) {
          if (entry->name == name) {
            return entry;
          }
        }
        return nullptr;
      },
      [this](Kind kind) {
        std::vector<std::string> names;
        for (const Registry::Entry* entry : of(kind)) {
          names.push_back(entry->name);
        }
        return names;
      },
      [this](Kind kind) { return of(kind); }};
}

std::vector<const Registry::Entry*> Plugins::of(Kind kind) const {
  std::vector<const Registry::Entry*> entries;
  for (const Registry::Entry& entry : schemas_) {
    if (entry.kind == kind) {
      entries.push_back(&entry);
    }
  }
  return entries;
}

Schema Plugins::section(std::string_view name) const {
  return shared_schema(name, of(Kind::strategy));
}

RecipeCatalogue Plugins::catalogue() const {
  RecipeCatalogue catalogue;
  for (const Registry::Entry& entry : schemas_) {
    catalogue.plugins.push_back(&entry);
  }
  catalogue.presets = load_presets(options());
  catalogue.layouts = load_layouts(options());
  return catalogue;
}

std::filesystem::path recipes() {
  return std::filesystem::path(std::getenv("MEGAHOST_SOURCE")) / "recipes";
}

LoadOptions options() {
  LoadOptions options;
  options.roots = {recipes()};
  options.lua.seconds = 0.3;
  return options;
}

Resolved
resolve_file(const std::filesystem::path& file, const LoadOptions& load, const Facts& facts) {
  const Plugins plugins;
  return resolve(load_recipe(file, load), plugins.lookup(), facts);
}

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "megahost-recipe-XXXXXX").string();
  path_ = mkdtemp(name.data());
}

Folder::~Folder() {
  std::filesystem::remove_all(path_);
}

std::filesystem::path Folder::write(const std::string& name, const std::string& text) const {
  const auto file = path_ / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
  return file;
}

std::string slurp(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::string refusal(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

} // namespace mh::test
