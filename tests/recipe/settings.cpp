#include "core/settings/settings.hpp"

#include "core/base/text.hpp"
#include "core/language/foreign_yaml.hpp"
#include "core/settings/training_arguments.hpp"
#include "fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>

namespace settings_tests {

using mh::Table;
using mh::Value;

namespace {

mh::SourcePtr source(const std::string& name, const std::string& text) {
  return std::make_shared<const mh::Source>(mh::Source{name, text, "settings"});
}

Value yaml(const std::string& text) {
  return mh::read_foreign_yaml(source("a.yaml", text));
}

std::string yaml_refusal(const std::string& text) {
  return mh::test::refusal([&] { static_cast<void>(yaml(text)); });
}

std::string fixture(const std::string& name) {
  std::ifstream file(std::string(std::getenv("MEGAHOST_SOURCE")) + "/tests/cli/import/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

mh::ImportedRecipe imported(const std::string& name, const std::string& text) {
  return mh::import_settings(mh::read_settings(source(name, text)), name);
}

mh::ImportedRecipe imported(const std::string& name) {
  return imported(name, fixture(name));
}

/// The fixture with one text in another's place, which has to be there.
std::string changed(const std::string& name, const std::string& from, const std::string& to) {
  std::string text = fixture(name);
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string why(const std::string& name, const std::string& from, const std::string& to) {
  const std::string text = changed(name, from, to);
  return mh::test::refusal([&] { static_cast<void>(imported(name, text)); });
}

std::string value(const mh::ImportedRecipe& recipe, const std::string& key) {
  const Value* found = recipe.tree.find_path(key);
  return found == nullptr ? "absent" : mh::to_text(*found);
}

std::string comments(const mh::ImportedRecipe& recipe) {
  return mh::join(recipe.comments, "\n");
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void check(
    const mh::ImportedRecipe& recipe, const std::vector<std::pair<std::string, std::string>>& all
) {
  for (const auto& [key, expected] : all) {
    CAPTURE(key);
    CHECK(value(recipe, key) == expected);
  }
}

} // namespace

TEST_CASE("YAML becomes a tree") {
  const Value tree = yaml("# a comment\n"
                          "a: 1\n"
                          "b: [1, two, 'it''s', {c: 3.5, d: }]  # and one here\n"
                          "e:\n"
                          "  f: -0.5\n"
                          "  \"g h\": \"\\u00e9\\n\"\n"
                          "list:\n"
                          "- 1.0e-05\n"
                          "- x: 1\n"
                          "  y: yes\n"
                          "- - 0\n"
                          "  - null\n"
                          "long: one\n"
                          "  and two\n"
                          "text: |\n"
                          "  line\n"
                          "    more\n"
                          "\n"
                          "  last\n"
                          "folded: >-\n"
                          "  one\n"
                          "  two\n"
                          "\n"
                          "  three\n"
                          "url: http://x/y#z\n");
  const Value expected = Table{
      {"a", 1},
      {"b", Value::Array{1, "two", "it's", Table{{"c", 3.5}, {"d", Value()}}}},
      {"e", Table{{"f", -0.5}, {"g h", "\xC3\xA9\n"}}},
      {"list", Value::Array{1e-5, Table{{"x", 1}, {"y", true}}, Value::Array{0, Value()}}},
      {"long", "one and two"},
      {"text", "line\n  more\n\nlast\n"},
      {"folded", "one two\nthree"},
      {"url", "http://x/y#z"}};
  CHECK(tree == expected);
  CHECK(tree.find_path("e.f")->origin.where() == "a.yaml:5:6");
}

TEST_CASE("YAML's anchors, tags and documents") {
  const Value tree = yaml("%YAML 1.1\n"
                          "---\n"
                          "base: &base {a: 1, b: 2}\n"
                          "more:\n"
                          "  <<: *base\n"
                          "  b: 3\n"
                          "paths: &paths\n"
                          "- x\n"
                          "again: *paths\n"
                          "text: !!str 12\n"
                          "pair: !!python/tuple\n"
                          "- 1\n"
                          "- 2\n"
                          "...\n");
  CHECK(*tree.find_path("more") == Value(Table{{"b", 3}, {"a", 1}}));
  CHECK(*tree.find("again") == Value(Value::Array{"x"}));
  CHECK(*tree.find("text") == Value("12"));
  CHECK(*tree.find("pair") == Value(Value::Array{1, 2}));
}

TEST_CASE("malformed YAML is refused with its place") {
  const std::pair<std::string, std::string> cases[] = {
      {"a: 1\na: 2\n", "the key `a` is given twice"},
      {"a: b: c\n", "illegal map value"},
      {"a: [1, 2\n", "end of sequence flow not found"},
      {"a:\n  b: 1\n c: 2\n", "end of map not found"},
      {"a: 1\n---\nb: 2\n", "a second document begins here"},
      {"- 1\n", "the file holds a list, expected a table"},
      {"a: *b\n", "the referenced anchor is not defined"},
      {"? [a]\n: b\n", "a key that is no word"},
      {"a: 'b' c\n", "end of map not found"},
      {"a: \"\\q\"\n", "unknown escape character: q"},
      {"<<: 1\n", "<< takes tables, this is none"},
      {"", "expected a table"}};
  for (const auto& [text, sentence] : cases) {
    CAPTURE(text);
    CHECK(holds(yaml_refusal(text), sentence));
    CHECK(holds(yaml_refusal(text), "a.yaml"));
  }
  std::string many = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string before = std::to_string(i - 1), own = std::to_string(i);
    many += "a" + own + ": &a" + own + " [";
    for (int k = 0; k < 10; ++k) {
      many += (k > 0 ? ", *a" : "*a") + before;
    }
    many += "]\n";
  }
  CHECK(holds(yaml_refusal(many), "more than 100,000 values"));
  for (const size_t depth : {100, 100'000}) {
    const std::string deep = std::string(depth, '[') + std::string(depth, ']');
    CHECK(holds(yaml_refusal("a: " + deep), "nested deeper"));
  }
}

TEST_CASE("spoiled settings are read or refused with a sentence, never anything else") {
  std::mt19937 random(1);
  for (const char* name : {"bridge.yaml", "nemo.yaml", "torchtitan.toml"}) {
    const std::string whole = fixture(name);
    const std::string letters = " \n\t:-[]{}'\"&*!|>#,0a";
    for (int trial = 0; trial < 150; ++trial) {
      std::string text = whole;
      for (int change = 0; change < 3; ++change) {
        const size_t at = random() % text.size();
        switch (random() % 3) {
        case 0:
          text[at] = letters[random() % letters.size()];
          break;
        case 1:
          text.erase(at, random() % 20);
          break;
        default:
          text.insert(at, 1, letters[random() % letters.size()]);
        }
      }
      try {
        CHECK(imported(name, text).tree.is_table());
      } catch (const mh::Error& error) {
        CHECK(std::string(error.what()).size() > 10);
      }
    }
  }
}

TEST_CASE("torchtitan's settings") {
  const mh::ImportedRecipe recipe = imported("torchtitan.toml");
  check(
      recipe,
      {{"name", "\"llama3-8B\""},
       {"model.use", "\"llama\""},
       {"model.layers", "32"},
       {"model.ffn_hidden", "14336"},
       {"model.rope_scaling", "\"llama3\""},
       {"model.seq_length", "4096"},
       {"precision", "\"fp8\""},
       {"fp8.recipe", "\"current\""},
       {"optimizer.use", "\"adamw\""},
       {"optimizer.lr", "3e-4"},
       {"optimizer.betas", "[0.9, 0.95]"},
       {"optimizer.decay_vectors", "true"},
       {"optimizer.clip_grad", "1"},
       {"lr_schedule.use", "\"wsd\""},
       {"lr_schedule.cooldown", "\"minus_sqrt\""},
       {"lr_schedule.cooldown_iters", "500"},
       {"lr_schedule.warmup_iters", "600"},
       {"lr_schedule.min_lr", "3e-5"},
       {"parallel.tensor", "4"},
       {"parallel.sequence", "true"},
       {"parallel.pipeline", "2"},
       {"parallel.virtual_stages", "2"},
       {"parallel.data", "8"},
       {"parallel.zero", "1"},
       {"batch.micro", "1"},
       {"batch.global", "16"},
       {"recompute.use", "\"full\""},
       {"checkpoint.dir", "\"./outputs/checkpoint\""},
       {"checkpoint.keep", "3"},
       {"checkpoint.async", "true"},
       {"train.iters", "2000"},
       {"train.seed", "7"},
       {"comm.timeout", "300"},
       {"log.interval", "5"},
       {"tokenizer.vocab", "128256"}}
  );
  CHECK(holds(comments(recipe), "no number depends on them: job.description, compile.enable"));
  CHECK(holds(comments(recipe), "training.dataset \"c4\": data are made up here"));
  CAPTURE(comments(recipe));
  CHECK_FALSE(holds(comments(recipe), "not known"));
  const std::string text = recipe.text("From a.toml.", mh::RecipeFormat::toml);
  CHECK(holds(text, "lr = 3e-4  # optimizer.lr = 3e-4"));
  CHECK(holds(text, "betas = [0.9, 0.95]  # torchtitan's default"));
}

TEST_CASE("torchtitan's settings of 2024, and of other ranks") {
  const mh::ImportedRecipe old = imported(
      "old.toml",
      "[model]\nname = \"llama3\"\nflavor = \"70B\"\nnorm_type = \"rmsnorm\"\n"
      "[training]\nbatch_size = 4\nseq_len = 8192\nwarmup_steps = 100\nsteps = 1000\n"
      "data_parallel_degree = -1\ntensor_parallel_degree = 8\n"
      "[experimental]\npipeline_parallel_degree = 1\n"
  );
  check(
      old,
      {{"parallel.tensor", "8"},
       {"parallel.data", "\"auto\""},
       {"parallel.zero", "3"},
       {"batch.micro", "4"},
       {"batch.global", "4"},
       {"lr_schedule.use", "\"linear\""},
       {"lr_schedule.decay_iters", "1000"},
       {"lr_schedule.warmup_iters", "100"},
       {"recompute.use", "\"selective\""}}
  );
  CHECK(holds(comments(old), "batch.global is that of one data-parallel rank"));
  const mh::ImportedRecipe experts = imported(
      "experts.toml",
      "[model]\nname = \"deepseek_v3\"\nflavor = \"16B\"\n[training]\nseq_len = 4096\n"
      "[parallelism]\nexpert_parallel_degree = 8\ndata_parallel_replicate_degree = 2\n"
      "data_parallel_shard_degree = 1\n"
  );
  check(
      experts,
      {{"model.use", "\"moe\""},
       {"model.experts", "64"},
       {"model.kv_rank", "512"},
       {"model.rope_scaling", "absent"},
       {"parallel.expert", "8"},
       {"parallel.data", "2"},
       {"parallel.zero", "absent"},
       {"optimizer.lr", "8e-4"}}
  );
}

TEST_CASE("torchtitan's experts among the ranks that are left") {
  const mh::ImportedRecipe recipe = imported(
      "experts.toml",
      "[model]\nname = \"deepseek_v3\"\nflavor = \"671B\"\n[training]\nseq_len = 4096\n"
      "local_batch_size = 4\n[parallelism]\nexpert_parallel_degree = 16\n"
      "tensor_parallel_degree = 4\ndata_parallel_shard_degree = -1\n"
  );
  check(
      recipe,
      {{"parallel.expert", "16"},
       {"parallel.tensor", "4"},
       {"parallel.data", "4"},
       {"batch.global", "16"}}
  );
  CHECK(holds(comments(recipe), "the fewest between which experts can be sharded"));
}

TEST_CASE("torchtitan's settings that are refused, or not known") {
  const char* file = "torchtitan.toml";
  CHECK(holds(why(file, "\"llama3\"", "\"flux\""), "known are llama3, qwen3, deepseek_v3"));
  CHECK(holds(why(file, "\"8B\"", "\"9B\""), "known are debugmodel, 1B, 3B, 8B, 70B, 405B"));
  CHECK(holds(why(file, "\"AdamW\"", "\"Muon\""), "expected one of AdamW, Adam"));
  CHECK(holds(why(file, "seq_len = 4096", "seq_len = \"long\""), "a string, expected a number"));
  CHECK(holds(why(file, "shard_degree = 8", "shard_degree = 0"), "or -1 for those that are left"));
  CHECK(holds(why(file, "\"sqrt\"", "\"step\""), "expected linear, sqrt or cosine"));
  const std::string typed = changed(file, "max_norm", "max_nrom");
  CHECK(holds(
      comments(imported(file, typed)),
      "training.max_nrom: not known here; did you mean training.max_norm?"
  ));
}

TEST_CASE("Megatron-Bridge's settings") {
  const mh::ImportedRecipe recipe = imported("bridge.yaml");
  check(
      recipe,
      {{"name", "\"qwen\""},
       {"precision", "\"bf16\""},
       {"model.use", "\"moe\""},
       {"model.layers", "48"},
       {"model.kv_heads", "4"},
       {"model.head_dim", "128"},
       {"model.experts", "128"},
       {"model.experts_per_token", "8"},
       {"model.expert_hidden", "768"},
       {"model.activation", "\"swiglu\""},
       {"model.norm", "\"rmsnorm\""},
       {"model.norm_eps", "1e-6"},
       {"model.bias", "false"},
       {"model.tied", "false"},
       {"model.qk_norm", "true"},
       {"model.rope_base", "1000000"},
       {"model.seq_length", "4096"},
       {"model.balance", "[\"auxiliary\"]"},
       {"parallel.tensor", "4"},
       {"parallel.sequence", "true"},
       {"parallel.pipeline", "2"},
       {"parallel.virtual_stages", "2"},
       {"parallel.expert", "4"},
       {"parallel.expert_tensor", "4"},
       {"parallel.data", "4"},
       {"parallel.zero", "1"},
       {"parallel.overlap", "true"},
       {"parallel.bucket_size", "40000000"},
       {"parallel.reduce_dtype", "absent"},
       {"optimizer.lr", "3e-4"},
       {"optimizer.betas", "[0.9, 0.95]"},
       {"optimizer.weight_decay", "0.1"},
       {"optimizer.momentum", "absent"},
       {"optimizer.weight_decay_start", "absent"},
       {"lr_schedule.use", "\"cosine\""},
       {"lr_schedule.warmup_iters", "2000"},
       {"lr_schedule.min_lr", "3e-5"},
       {"lr_schedule.on_resume", "\"recipe\""},
       {"lr_schedule.cooldown", "absent"},
       {"fp8", "absent"},
       {"recompute", "absent"},
       {"batch.global", "256"},
       {"train.iters", "300000"},
       {"train.eval_iters", "32"},
       {"data.paths", "[\"/data/web_text_document\", \"/data/code_text_document\"]"},
       {"data.weights", "[0.7, 0.3]"},
       {"data.split", "[99, 1, 0]"},
       {"data.index_files", "\"/data/index\""},
       {"checkpoint.dir", "\"/runs/qwen/checkpoints\""},
       {"checkpoint.interval", "500"},
       {"checkpoint.keep", "2"},
       {"tokenizer.vocab", "151936"}}
  );
  CAPTURE(comments(recipe));
  CHECK_FALSE(holds(comments(recipe), "not known"));
  CHECK_FALSE(holds(comments(recipe), "training differs"));
  const std::string text = recipe.text("From a.yaml.", mh::RecipeFormat::toml);
  CHECK(holds(text, "layers = 48  # model.num_layers = 48"));
  CHECK(holds(text, "overlap = true  # ddp.overlap_param_gather"));
}

TEST_CASE("Megatron-Bridge's settings in JSON are the same") {
  // Both are written of one object, by PyYAML and by json.
  const auto both = [](const std::string& json, const std::string& text) {
    CHECK(imported("a.json", json).tree == imported("a.yaml", text).tree);
  };
  both(
      R"({"model": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100,
          "fp8": null}, "train": {"train_iters": 5, "micro_batch_size": 1},
          "dataset": {"seq_length": 32}, "optimizer": {"lr": 1e-05}, "scheduler": {}})",
      "model:\n  num_layers: 2\n  hidden_size: 64\n  num_attention_heads: 4\n  vocab_size: 100\n"
      "train:\n  train_iters: 5\n  micro_batch_size: 1\ndataset:\n  seq_length: 32\n"
      "optimizer:\n  lr: 1.0e-05\nscheduler: {}\n"
  );
}

TEST_CASE("Megatron-Bridge's settings that change the model") {
  const auto with = [](const std::string& from, const std::string& to) {
    return imported("bridge.yaml", changed("bridge.yaml", from, to));
  };
  const std::string rope = "  position_embedding_type: rope\n";
  const auto scaled =
      with(rope, rope + "  scale_factor: 8.0\n  low_freq_factor: 1.0\n  old_context_len: 8192\n");
  check(
      scaled,
      {{"model.rope_scaling", "\"llama3\""},
       {"model.rope_factor", "8.0"},
       {"model.rope_original_length", "8192"}}
  );
  const auto fp8 =
      with("mixed_precision: bf16_mixed", "mixed_precision: bf16_with_fp8_current_scaling_mixed");
  check(fp8, {{"precision", "\"fp8\""}, {"fp8.recipe", "\"current\""}});
  const auto sums = with("grad_reduce_in_fp32: true", "grad_reduce_in_fp32: false");
  check(sums, {{"parallel.reduce_dtype", "\"bf16\""}});
  const auto gated = with("torch.nn.functional.silu", "torch.nn.functional.gelu");
  check(gated, {{"model.activation", "\"geglu\""}});
  const auto window = with(rope, rope + "  window_size: [1023, 0]\n");
  check(window, {{"model.window", "1024"}});
  const auto mocked = with("  blend:\n", "  mock: true\n  was:\n");
  check(mocked, {{"data.use", "\"mock\""}});
  CHECK(holds(comments(mocked), "dataset.was: not known here"));
  const auto clipped = with(rope, rope + "  qk_clip: true\n");
  CHECK(holds(comments(clipped), "model.qk_clip: no equivalent, training differs: attention is of")
  );
  const auto warmed = with(
      "fraction: null\n  lr_warmup_init: 0.0\n  lr_warmup_iters: 2000",
      "fraction: 0.01\n  lr_warmup_iters: 0"
  );
  check(warmed, {{"lr_schedule.warmup_share", "0.01"}, {"lr_schedule.warmup_iters", "absent"}});
  std::string text =
      changed("bridge.yaml", "train_iters: 300000", "train_iters: 9\n  train_samples: 900");
  const std::pair<std::string, std::string> lengths[] = {
      {"lr_decay_iters: 300000", "lr_decay_samples: 800"},
      {"lr_warmup_iters: 2000", "lr_warmup_iters: 0"},
      {"lr_warmup_samples: 0", "lr_warmup_samples: 90"}};
  for (const auto& [steps, samples] : lengths) {
    text.replace(text.find(steps), steps.size(), samples);
  }
  check(
      imported("bridge.yaml", text), // its steps are made of its samples
      {{"train.samples", "900"},
       {"train.iters", "absent"},
       {"lr_schedule.warmup_samples", "90"},
       {"lr_schedule.warmup_iters", "absent"}}
  );
  const auto seeded = with("random_seed: 1234", "random_seed: 5");
  CHECK(holds(comments(seeded), "dataset.random_seed: no equivalent, training differs"));
}

TEST_CASE("Megatron-Bridge's settings that are refused, or not known") {
  const char* file = "bridge.yaml";
  CHECK(holds(why(file, "peft: null", "peft: {dim: 8}"), "all weights are trained"));
  CHECK(holds(why(file, "Qwen3MoEModelProvider", "Qwen3VLModelProvider"), "of images or sounds"));
  CHECK(holds(why(file, "config.GPTDatasetConfig", "config.GPTSFTDatasetConfig"), "--template"));
  CHECK(holds(why(file, "bf16_mixed", "bf16_with_nvfp4_mixed"), "has no equivalent"));
  CHECK(holds(why(file, "functional.silu", "functional.mish"), "gated, which has no equivalent"));
  CHECK(holds(why(file, "add_bias_linear: false", "add_bias_linear: 3"), "expected true or false"));
  CHECK(holds(why(file, "num_layers: 48", "layers: 48"), "its sizes are not in this file"));
  CHECK(holds(why(file, "lr: 0.0003", "lr: fast"), "expected a number"));
  const std::string typed =
      changed(file, "micro_batch_size: 1", "micro_batch_sise: 1\n  micro_batch_size: 1");
  CHECK(holds(
      comments(imported(file, typed)),
      "train.micro_batch_sise: not known here; did you mean train.micro_batch_size?"
  ));
}

TEST_CASE("NeMo's settings") {
  const mh::ImportedRecipe recipe = imported("nemo.yaml");
  check(
      recipe,
      {{"name", "\"small\""},
       {"precision", "\"bf16\""},
       {"model.use", "\"llama\""},
       {"model.layers", "12"},
       {"model.ffn_hidden", "2048"},
       {"model.activation", "\"swiglu\""},
       {"model.norm", "\"rmsnorm\""},
       {"model.bias", "false"},
       {"model.tied", "false"},
       {"model.seq_length", "2048"},
       {"parallel.tensor", "2"},
       {"parallel.sequence", "true"},
       {"parallel.data", "8"},
       {"parallel.zero", "1"},
       {"recompute.use", "\"selective\""},
       {"optimizer.lr", "3e-4"},
       {"optimizer.betas", "[0.9, 0.95]"},
       {"optimizer.clip_grad", "0.8"},
       {"lr_schedule.use", "\"cosine\""},
       {"lr_schedule.decay_iters", "45000"},
       {"lr_schedule.warmup_iters", "500"},
       {"lr_schedule.min_lr", "3e-5"},
       {"batch.micro", "4"},
       {"batch.global", "256"},
       {"train.iters", "50000"},
       {"train.eval_interval", "500"},
       {"train.eval_iters", "20"},
       {"train.seed", "99"},
       {"data.paths", "[\"/data/a_text_document\", \"/data/b_text_document\"]"},
       {"data.weights", "[0.5, 0.5]"},
       {"data.split", "[98, 2, 0]"},
       {"checkpoint.dir", "\"/runs/small\""},
       {"checkpoint.interval", "1000"},
       {"checkpoint.keep", "5"},
       {"tokenizer.use", "\"hf\""},
       {"tokenizer.path", "\"/models/tokenizer\""}}
  );
  CAPTURE(comments(recipe));
  CHECK_FALSE(holds(comments(recipe), "not known"));
  const std::string typed = changed("nemo.yaml", "  seed: 99", "  sede: 99");
  CHECK(holds(comments(imported("nemo.yaml", typed)), "model.sede: not known here"));
  CHECK(holds(why("nemo.yaml", "fast-swiglu", "snake"), "known are gelu, geglu, swiglu"));
  CHECK(holds(why("nemo.yaml", "CosineAnnealing", "Stepwise"), "the schedule Stepwise has no"));
  CHECK(holds(why("nemo.yaml", "rmsnorm", "batchnorm"), "model.normalization is batchnorm"));
}

TEST_CASE("NeMo 2's settings") {
  const std::string text =
      "_target_: nemo.collections.llm.api.pretrain\n"
      "data:\n  _target_: nemo.collections.llm.gpt.data.mock.MockDataModule\n"
      "  seq_length: 4096\n  micro_batch_size: 1\n  global_batch_size: 64\n"
      "model:\n  _target_: nemo.collections.llm.gpt.model.llama.LlamaModel\n"
      "  config:\n    _target_: nemo.collections.llm.gpt.model.llama.LlamaConfig\n"
      "    num_layers: 4\n    hidden_size: 64\n    num_attention_heads: 4\n    vocab_size: 100\n"
      "    normalization: RMSNorm\n    position_embedding_type: rope\n"
      "optim:\n  config:\n    lr: 0.001\n    optimizer: adam\n    use_distributed_optimizer: true\n"
      "  lr_scheduler:\n    _target_: nemo.lightning.CosineAnnealingScheduler\n"
      "    warmup_steps: 10\n    constant_steps: 0\n    min_lr: 0.0001\n"
      "trainer:\n  max_steps: 100\n  devices: 8\n  num_nodes: 1\n  limit_val_batches: 0\n"
      "  plugins:\n    precision: bf16-mixed\n    grad_reduce_in_fp32: true\n"
      "  strategy:\n    tensor_model_parallel_size: 2\n    sequence_parallel: true\n"
      "    ddp:\n      overlap_grad_reduce: true\n";
  const mh::ImportedRecipe recipe = imported("a.yaml", text);
  check(
      recipe,
      {{"model.layers", "4"},
       {"precision", "\"bf16\""},
       {"parallel.tensor", "2"},
       {"parallel.data", "4"},
       {"parallel.zero", "1"},
       {"lr_schedule.use", "\"cosine\""},
       {"lr_schedule.min_lr", "1e-4"},
       {"train.iters", "100"},
       {"train.eval_interval", "0"},
       {"batch.global", "64"},
       {"data.use", "\"mock\""}}
  );
  std::string named = text;
  named.erase(named.find("    num_layers: 4\n"), 18);
  CHECK(holds(
      mh::test::refusal([&] { static_cast<void>(imported("a.yaml", named)); }),
      "model is a LlamaConfig, and says no num_layers"
  ));
}

TEST_CASE("NeMo 2's models by the names of their classes") {
  const auto named = [](const std::string& config) {
    return imported(
        "a.yaml",
        "_target_: nemo.collections.llm.api.pretrain\n_partial_: true\n"
        "data:\n  seq_length: 4096\n  micro_batch_size: 1\n  global_batch_size: 64\n"
        "  tokenizer:\n    pretrained_model_name: meta-llama/Llama-3.1-8B\n"
        "model:\n  _target_: nemo.collections.llm.gpt.model.llama.LlamaModel\n  config:\n" +
            config +
            "optim:\n  config:\n    lr: 0.001\n    optimizer: adam\n"
            "trainer:\n  max_steps: 100\n  devices: 8\n  num_nodes: 1\n"
    );
  };
  const std::string place = "    _target_: nemo.collections.llm.gpt.model.";
  check(
      named(place + "llama.Llama32Config1B\n    num_layers: 4\n    num_query_groups: null\n"),
      {{"model.use", "\"llama\""},
       {"model.layers", "4"}, // what the file says counts
       {"model.hidden", "2048"},
       {"model.kv_heads", "absent"},
       {"model.ffn_hidden", "8192"},
       {"model.tied", "true"},
       {"model.rope_base", "500000"},
       {"model.rope_scaling", "\"llama3\""},
       {"model.rope_factor", "32.0"},
       {"model.seq_length", "4096"},
       {"init.std", "absent"}}
  );
  check(
      named(place + "qwen3.Qwen3Config30B_A3B\n"),
      {{"model.use", "\"moe\""},
       {"model.layers", "48"},
       {"model.experts", "128"},
       {"model.expert_hidden", "768"},
       {"model.kv_heads", "4"},
       {"model.head_dim", "128"},
       {"model.qk_norm", "true"},
       {"model.norm_eps", "1e-6"},
       {"model.qkv_bias", "absent"}}
  );
  check(
      named(place + "nemotron.Nemotron4Config15B\n"),
      {{"model.use", "\"gpt\""},
       {"model.activation", "\"relu2\""},
       {"model.norm", "\"layernorm\""},
       {"model.rope_share", "0.5"}}
  );
}

TEST_CASE("transformers' TrainingArguments") {
  const auto of = [](const std::string& text) {
    return mh::import_training_arguments(mh::read_settings(source("training_args.json", text)));
  };
  const mh::ImportedRecipe recipe = of(fixture("training_args.json"));
  check(
      recipe,
      {{"name", "\"tuned\""},
       {"precision", "\"bf16\""},
       {"batch.micro", "2"},
       {"batch.global", "16"},
       {"train.iters", "400"},
       {"train.eval_interval", "100"},
       {"train.seed", "3"},
       {"optimizer.use", "\"adamw\""},
       {"optimizer.lr", "2e-5"},
       {"optimizer.betas", "[0.9, 0.95]"},
       {"optimizer.weight_decay", "0.1"},
       {"optimizer.clip_grad", "0.5"},
       {"lr_schedule.use", "\"cosine\""},
       {"lr_schedule.warmup_share", "0.05"},
       {"lr_schedule.min_lr", "2e-6"},
       {"recompute.use", "\"full\""},
       {"parallel.zero", "2"},
       {"log.interval", "5"},
       {"checkpoint.dir", "\"out\""},
       {"checkpoint.interval", "100"},
       {"checkpoint.keep", "2"}}
  );
  CHECK(holds(comments(recipe), "neftune_noise_alpha: no equivalent, training differs"));
  CHECK(holds(comments(recipe), "batch.global is that of one data-parallel rank"));
  CHECK_FALSE(holds(comments(recipe), "label_smoothing_factor"));
  const mh::ImportedRecipe epochs = of(R"({"num_train_epochs": 2, "learning_rats": 1})");
  CHECK(holds(comments(epochs), "num_train_epochs 2: train.iters is the length of a run in steps"));
  CHECK(holds(comments(epochs), "learning_rats: not known here; did you mean learning_rate?"));
  check(
      epochs, {{"optimizer.lr", "5e-5"}, {"batch.micro", "8"}, {"lr_schedule.use", "\"linear\""}}
  );
  const auto refused = [&](const std::string& text) {
    return mh::test::refusal([&] { static_cast<void>(of(text)); });
  };
  CHECK(holds(refused(R"({"optim": "galore_adamw"})"), "expected adamw_torch, adafactor"));
  CHECK(holds(refused(R"({"lr_scheduler_type": "polynomial"})"), "lr_scheduler_type is"));
  CHECK(holds(refused(R"({"learning_rate": "big"})"), "learning_rate is a string"));
}

TEST_CASE("files that are no settings") {
  CHECK(mh::is_settings("a.toml", ""));
  CHECK(mh::is_settings("a.yaml", "model: {}\n"));
  CHECK_FALSE(mh::is_settings("a.yaml", "# x\napiVersion: v1\nkind: Job\n"));
  CHECK_FALSE(mh::is_settings("train.sh", "x"));
  const auto refused = [](const std::string& text) {
    return mh::test::refusal([&] { static_cast<void>(imported("a.json", text)); });
  };
  CHECK(holds(refused(R"({"a": 1, "b": 2})"), "it has a, b"));
  CHECK(holds(refused("{}"), "it has nothing"));
  CHECK(holds(
      refused(fixture("training_args.json")), "a.json has the TrainingArguments of transformers"
  ));
}

} // namespace settings_tests
