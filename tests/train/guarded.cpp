// Runs that meet bad numbers: float16 overflows, NaN, spikes; what is skipped, rewound, named.

#include "core/checkpoint/copies.hpp"
#include "core/mesh/threads.hpp"
#include "core/plan/stage_record.hpp"
#include "core/step/repeated_step.hpp"
#include "megahost/nn/decoder.hpp"
#include "megahost/optimizer.hpp"
#include "runs.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>

namespace {

/// Tokens that repeat, and labels that follow from them, with `spoil` to spoil a sample. Samples
/// from `gap` on are those `width` further on.
class Numbered : public mh::Corpus {
public:
  struct Config {
    std::string fault = "none";
    int64_t first = 0, count = 0;
  };

  static void fields(mh::Fields<Config>& f) {
    f.add("fault", &Config::fault, "what is wrong with some samples")
        .one_of({"none", "nan", "spike", "gap"});
    f.add("first", &Config::first, "first of them");
    f.add("count", &Config::count, "how many there are");
  }

  Numbered(const Config& config, const Args& args)
      : config_(config)
      , length_(static_cast<size_t>(args.seq_length)) {
    ++made;
  }

  static inline int made = 0;

  [[nodiscard]] int64_t size(mh::Split) const override { return 1000; }

  [[nodiscard]] mh::Sample sample(mh::Split, int64_t index) const override {
    bool bad = index >= config_.first && index < config_.first + config_.count;
    if (config_.fault == "gap") {
      index += index >= config_.first ? config_.count : 0;
      bad = false;
    }
    std::vector<int64_t> tokens, labels;
    for (size_t t = 0; t < length_; ++t) {
      tokens.push_back((index * 7 + static_cast<int64_t>(t) * 3) % 19);
      labels.push_back(bad && config_.fault == "spike" ? 19 : (tokens.back() + 3 + index % 2) % 19);
    }
    const float mask =
        bad && config_.fault == "nan" ? std::numeric_limits<float>::quiet_NaN() : 1.0F;
    return {
        {"tokens", tokens}, {"labels", labels}, {"loss_mask", std::vector<float>(length_, mask)}};
  }

  [[nodiscard]] std::string summary() const override { return "numbered"; }

private:
  Config config_;
  size_t length_;
};

mh::Host host() {
  auto plugins = runs::host();
  mh::Registry registry(mh::PluginInfo{"org.example.numbered", "1", "", "", "", "", {}});
  registry.add<Numbered>("numbered", "samples, some of them spoilt");
  plugins.registry().merge(std::move(registry));
  return plugins;
}

mh::TrainSummary run_numbered(
    const mh::Recipe& recipe, runs::Lines& output, bool resume = false, bool debug = false
) {
  auto plugins = host();
  const auto how = resume ? mh::Resume::yes : mh::Resume::no;
  return mh::train(recipe, plugins, {.resume = how, .closing = false, .debug = debug}, output);
}

/// 12 steps of 4 samples without dropout: step 5 reads samples 16 to 19.
mh::Recipe recipe_of(const runs::fs::path& folder, const std::string& fault, int64_t first = 16) {
  auto recipe = runs::recipe(folder);
  recipe.model.options = mh::Table{{"layers", 2}, {"hidden", 16}, {"heads", 2}};
  recipe.data.use = "numbered";
  recipe.data.options = mh::Table{{"fault", fault}, {"first", first}, {"count", 4}};
  return recipe;
}

int64_t count_of(const std::vector<std::string>& lines, const std::string& words) {
  int64_t count = 0;
  for (const auto& line : lines) {
    count += line.find(words) != std::string::npos ? 1 : 0;
  }
  return count;
}

} // namespace

TEST_CASE("float16 overflows at first, then learns; scale and skipped steps are told") {
  const runs::Folder folder;
  for (const std::string model : {"gpt", "llama"}) {
    auto recipe = runs::recipe(folder / model);
    recipe.model.use = model;
    recipe.model.options = mh::Table{{"layers", 2}, {"hidden", 32}, {"heads", 2}};
    recipe.precision = "fp16";
    recipe.fp16.window = 20;
    recipe.train.iters = 80;
    recipe.batch.global = 16;
    recipe.batch.micro = 8;
    recipe.log.num_zeros = true;
    recipe.log.params_norm = true;
    runs::Lines output;
    const auto summary = runs::train(recipe, output);
    CAPTURE(model);
    CHECK(summary.step == 80);
    REQUIRE(summary.loss.has_value());
    CHECK(*summary.loss < 2.2);
    CHECK(output.say("fp16 weights; fp32 gradients, master weights and loss; loss scale dynamic"));
    CHECK(output.say("| skipped 1 |"));
    CHECK(output.say("| loss scale 4.29497e+09 |"));
    const std::string metrics = runs::contents(folder / model / "metrics.jsonl");
    for (const auto* word :
         {"\"skipped\":\"nan\"", "\"loss_scale\":", "\"num_zeros\":", "\"params_norm\":"}) {
      CHECK(metrics.find(word) != std::string::npos);
    }
    // skipped steps move neither schedule nor Adam's step: the first update has the first rate
    const auto lines = runs::metrics(folder / model);
    const auto first = std::find_if(lines.begin(), lines.end(), [](const auto& line) {
      return line.find("\"losses\":{}") == std::string::npos;
    });
    REQUIRE(first != lines.end());
    CHECK(first->find("\"lr\":0.0,") != std::string::npos); // first rate of the warm-up
    CHECK(first != lines.begin());
  }
}

TEST_CASE("a constant scale works where nothing overflows, and stops where everything does") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "a");
  recipe.precision = "fp16";
  recipe.fp16.loss_scale = 64;
  runs::Lines output;
  CHECK(runs::train(recipe, output).step == 12);
  CHECK_FALSE(output.say("skipped"));
  recipe.checkpoint.dir = folder / "b";
  recipe.fp16.loss_scale = 1e12;
  recipe.guards.skips = 3;
  try {
    (void)runs::train(recipe, output);
    FAIL("no error");
  } catch (const mh::Error& error) {
    CHECK(error.exit_code() == mh::exit_code::numbers);
    CHECK(
        std::string(error.what())
            .find(
                "step 4: the gradients overflow at loss scale 1000000000000, after 3 skipped steps"
            ) == 0
    );
  }
}

TEST_CASE("resumed runs have the bits of unbroken ones in fp16 and fp8, recomputed or not") {
  const runs::Folder folder;
  for (const std::string precision : {"fp16", "fp8", "fp8 current"}) {
    auto recipe = runs::recipe(folder / ("whole " + precision));
    recipe.precision = precision.substr(0, 4) == "fp16" ? "fp16" : "fp8";
    recipe.fp16.window = 3;
    recipe.fp8.history = 4;
    recipe.fp8.recipe = precision == "fp8 current" ? "current" : "delayed";
    recipe.train.iters = 24;
    recipe.recompute.use = "full";
    runs::Lines output;
    (void)runs::train(recipe, output);
    const auto expected = runs::tensors(recipe.checkpoint.dir, 24);
    recipe.recompute.use = "none";
    recipe.checkpoint.dir = folder / ("parts " + precision);
    recipe.train.exit_iters = 14;
    (void)runs::train(recipe, output);
    recipe.train.exit_iters.reset();
    CHECK(runs::train(recipe, output, /*resume=*/true).step == 24);
    CAPTURE(precision);
    CHECK(runs::tensors(recipe.checkpoint.dir, 24) == expected);
    const auto file =
        runs::contents(runs::step_folder(recipe.checkpoint.dir, 24) / "megahost.manifest.json");
    CHECK((file.find("fp8.layers.1.mlp.down.weight") != std::string::npos) == (precision == "fp8"));
    CHECK((file.find("hysteresis") != std::string::npos) == (precision == "fp16"));
  }
}

TEST_CASE("a model learns in fp8, by delayed and by current scaling") {
  const runs::Folder folder;
  for (const std::string scaling : {"delayed", "current"}) {
    auto recipe = runs::recipe(folder / scaling);
    recipe.model.use = "llama";
    recipe.model.options = mh::Table{{"layers", 2}, {"hidden", 32}, {"heads", 2}};
    recipe.precision = "fp8";
    recipe.fp8.recipe = scaling;
    recipe.fp8.history = 16;
    recipe.train.iters = 60;
    recipe.batch.global = 16;
    recipe.batch.micro = 8;
    runs::Lines output;
    const auto summary = runs::train(recipe, output);
    CHECK(*summary.loss < 2.2);
    CHECK(output.say("fp8 GEMMs (E4M3, gradients E5M2, " + scaling + " scaling)"));
  }
}

TEST_CASE("NaN: the step is skipped, and nothing of it remains") {
  const runs::Folder folder;
  auto recipe = recipe_of(folder / "skip", "nan");
  recipe.guards.nan = "skip";
  recipe.checkpoint.interval = 1;
  runs::Lines output;
  CHECK(run_numbered(recipe, output).step == 12);
  CHECK(output.say("skipped step 5: the lm loss is nan; samples 16 to 19"));
  CHECK(runs::tensors(folder / "skip", 4) == runs::tensors(folder / "skip", 5));
  CHECK(runs::tensors(folder / "skip", 5) != runs::tensors(folder / "skip", 6));
  const auto lines = runs::metrics(folder / "skip");
  REQUIRE(lines.size() == 12);
  CHECK(lines[4].find("\"losses\":{}") != std::string::npos);
}

TEST_CASE("weights that an update has spoiled are not saved") {
  const runs::Folder folder;
  for (const bool in_background : {true, false}) {
    CAPTURE(in_background);
    auto recipe = recipe_of(folder / (in_background ? "background" : "blocking"), "none");
    recipe.checkpoint.interval = 1;
    recipe.checkpoint.async = in_background;
    recipe.train.exit_iters = 2;
    runs::Lines output;
    (void)run_numbered(recipe, output);
    recipe.optimizer.lr = 1e300; // the next update makes infinite weights
    recipe.lr_schedule.use = "constant";
    recipe.train.exit_iters = 3;
    CHECK_THROWS_AS((void)run_numbered(recipe, output, /*resume=*/true), mh::Error);
    CHECK(output.say("step 3 is not saved: the weights after it are not all finite numbers"));
    CHECK(!runs::fs::exists(runs::step_folder(recipe.checkpoint.dir, 3)));
    recipe.train.exit_iters.reset();
    recipe.guards.nan = "rewind";
    recipe.guards.rewinds = 1;
    CHECK_THROWS_AS((void)run_numbered(recipe, output, /*resume=*/true), mh::Error);
    CHECK(output.say("rewound to the checkpoint of step 2"));
  }
}

TEST_CASE("NaN in a mixture: the first router whose logits are NaN is named") {
  const runs::Folder folder;
  auto recipe = recipe_of(folder / "mixture", "none");
  recipe.model.use = "moe";
  recipe.model.options = mh::Table{
      {"layers", 2},
      {"hidden", 16},
      {"heads", 2},
      {"experts", 4},
      {"first_dense", 1},
      {"init_std", 1e12}};
  recipe.guards.nan = "skip";
  recipe.guards.skips = 2;
  runs::Lines output;
  CHECK_THROWS_AS((void)run_numbered(recipe, output), mh::Error);
  CHECK(output.say("skipped step 1: the lm loss is nan, and so are router logits, first those of "
                   "layers.1.mlp; samples 0 to 3"));
}

TEST_CASE("NaN: back to the checkpoint, and on without the data since then") {
  const runs::Folder folder;
  auto recipe = recipe_of(folder / "rewind", "nan");
  recipe.guards.nan = "rewind";
  recipe.checkpoint.interval = 3;
  runs::Lines output;
  CHECK(run_numbered(recipe, output).step == 12);
  CHECK(output.say("step 5: the lm loss is nan; rewound to the checkpoint of step 3, data go on at "
                   "sample 20"));
  // samples 12 to 19 might as well never have been there
  auto clean = recipe_of(folder / "clean", "gap", 12);
  clean.data.options = mh::Table{{"fault", "gap"}, {"first", 12}, {"count", 8}};
  (void)run_numbered(clean, output);
  CHECK(runs::tensors(folder / "rewind", 12) == runs::tensors(folder / "clean", 12));
  CHECK(runs::metrics(folder / "rewind").size() == 12);

  // and the same again when the run is stopped after the rewind
  recipe.checkpoint.dir = folder / "resumed";
  recipe.train.exit_iters = 8;
  (void)run_numbered(recipe, output);
  recipe.train.exit_iters.reset();
  (void)run_numbered(recipe, output, /*resume=*/true);
  CHECK(runs::tensors(folder / "resumed", 12) == runs::tensors(folder / "clean", 12));

  // more batches may be left out, and there are only so many rewinds
  recipe.checkpoint.dir = folder / "further";
  recipe.guards.skip_batches = 2;
  runs::Lines further;
  (void)run_numbered(recipe, further);
  CHECK(further.say("data go on at sample 28"));
  auto hopeless = recipe_of(folder / "hopeless", "nan");
  hopeless.data.options = mh::Table{{"fault", "nan"}, {"first", 16}, {"count", 900}};
  hopeless.guards.nan = "rewind";
  hopeless.guards.rewinds = 2;
  hopeless.checkpoint.interval = 3;
  runs::Lines last;
  CHECK_THROWS_AS((void)run_numbered(hopeless, last), mh::Error);
  CHECK(count_of(last.lines, "rewound to the checkpoint of step 3") == 2);
  CHECK(last.say("after 2 rewinds (guards.rewinds)"));
  hopeless.checkpoint = mh::Recipe().checkpoint;
  hopeless.checkpoint.dir = (folder / "none").string();
  CHECK_THROWS_AS((void)run_numbered(hopeless, last), mh::Error);
  CHECK(last.say("there is no checkpoint to rewind to"));
}

TEST_CASE("spikes of the loss are skipped, or rewound, or stop the run") {
  const runs::Folder folder;
  const auto spiky = [&](const std::string& action) {
    auto recipe = recipe_of(folder / action, "spike", 160); // step 41
    recipe.train.iters = 50;
    recipe.guards.spike = action;
    recipe.guards.window = 24;
    recipe.checkpoint.interval = 10;
    return recipe;
  };
  runs::Lines output;
  CHECK(run_numbered(spiky("off"), output).step == 50);
  CHECK_FALSE(output.say("robust standard deviations"));
  CHECK(run_numbered(spiky("skip"), output).step == 50);
  CHECK(count_of(output.lines, "skipped step 41: the lm loss is ") == 1);
  CHECK(runs::metrics(folder / "skip").at(40).find("\"losses\":{}") != std::string::npos);
  CHECK(run_numbered(spiky("rewind"), output).step == 50);
  CHECK(output.say("rewound to the checkpoint of step 40, data go on at sample 164"));
  try {
    (void)run_numbered(spiky("stop"), output);
    FAIL("no error");
  } catch (const mh::Error& error) {
    CHECK(error.exit_code() == mh::exit_code::numbers);
    CHECK(std::string(error.what()).find("step 41: the lm loss is ") == 0);
  }
}

TEST_CASE("--debug changes no bit, and says whether an operation or the data made the NaN") {
  const runs::Folder folder;
  runs::Lines output;
  auto recipe = recipe_of(folder / "plain", "none");
  recipe.train.iters = 3;
  (void)run_numbered(recipe, output);
  recipe.checkpoint.dir = folder / "watched";
  (void)run_numbered(recipe, output, false, /*debug=*/true);
  CHECK(runs::tensors(folder / "plain", 3) == runs::tensors(folder / "watched", 3));

  CHECK_THROWS_AS(
      (void)run_numbered(recipe_of(folder / "nan", "nan"), output, false, true), mh::Error
  );
  CHECK(output.say("weights or data held it"));

  // weights that explode: the product that overflows is named with its block
  auto explosive = recipe_of(folder / "explosive", "none");
  explosive.optimizer.use = "sgd";
  explosive.optimizer.lr = 1e25;
  explosive.optimizer.clip_grad = 0;
  explosive.lr_schedule = {"constant", mh::Table{}};
  runs::Lines named;
  CHECK_THROWS_AS((void)run_numbered(explosive, named, false, true), mh::Error);
  CHECK(named.say("the first NaN or Inf came from "));
  CHECK(named.say("of microbatch 0"));
}

TEST_CASE("a deterministic run says so and has the same bits twice") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "a");
  recipe.train.deterministic = true;
  runs::Lines output;
  (void)runs::train(recipe, output);
  CHECK(output.say("deterministic: operations without a deterministic form are refused"));
  (void)runs::train(recipe, output);
  CHECK(runs::tensors(folder / "a", 12) == runs::tensors(folder / "a-2", 12));
  recipe.train.deterministic = false;
  recipe.checkpoint.dir = folder / "b";
  (void)runs::train(recipe, output);
  CHECK(runs::tensors(folder / "a", 12) == runs::tensors(folder / "b", 12));
}

TEST_CASE("a memory budget recomputes what it must, and changes no bit") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "none");
  recipe.model.options = mh::Table{{"layers", 6}, {"hidden", 32}, {"heads", 2}, {"dropout", 0.1}};
  recipe.model.seq_length = 64;
  recipe.train.iters = 3;
  runs::Lines output;
  (void)runs::train(recipe, output);
  recipe.recompute.use = "budget";
  const auto train_planned = [](const mh::Recipe& planned, runs::Lines& lines) {
    auto host = runs::host();
    return mh::train(
        planned,
        host,
        {.closing = false, .step_peak = mh::step_peak({.recipe = planned, .host = host})},
        lines
    );
  };
  for (const double gigabytes : {1.0, 0.0026}) {
    recipe.checkpoint.dir = folder / ("budget " + std::to_string(gigabytes));
    recipe.recompute.options = mh::Table{{"memory_gb", gigabytes}};
    runs::Lines lines;
    (void)train_planned(recipe, lines);
    CHECK(runs::tensors(recipe.checkpoint.dir, 3) == runs::tensors(folder / "none", 3));
    CHECK(lines.say(" of tensors in the first step, "));
    CHECK(lines.say("6 keep everything") == (gigabytes == 1.0));
  }
  recipe.recompute.options = mh::Table{{"memory_gb", 0.0001}};
  try {
    (void)train_planned(recipe, output);
    FAIL("no error");
  } catch (const mh::Error& error) {
    CHECK(std::string(error.what()).find("recompute.memory_gb = 0.0001 is too little") == 0);
  }
}

TEST_CASE("a run makes its corpus once, whatever its memory is planned for") {
  const runs::Folder folder;
  auto recipe = recipe_of(folder / "budget", "none");
  recipe.recompute.use = "budget";
  recipe.recompute.options = mh::Table{{"memory_gb", 1.0}};
  recipe.train.exit_iters = 1;
  auto plugins = host();
  runs::Lines output;
  Numbered::made = 0;
  (void)mh::train(
      recipe,
      plugins,
      {.closing = false, .step_peak = mh::step_peak({.recipe = recipe, .host = plugins})},
      output
  );
  CHECK(output.say(" planned"));
  CHECK(Numbered::made == 1);
}

namespace {

/// The rank of this thread.
thread_local int64_t t_rank = 0;

/// Plain descent, whose third update, or each, flips a bit of one weight of rank 1.
class Flips : public mh::Optimizer {
public:
  struct Config {
    bool each = false;
  };

  static void fields(mh::Fields<Config>& f) { f.add("each", &Config::each, "each update"); }

  Flips(const Config& config, const Args&)
      : config_(config) {}

  [[nodiscard]] std::vector<mh::StateSpec> state() const override { return {}; }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override {
    for (mh::UpdateItem& item : items) {
      item.weight.sub_(item.gradient, update.lr.read() * update.gradient_scale.read());
    }
    if (t_rank == 1 && (config_.each || update.step.read() == 3)) {
      auto* bits = reinterpret_cast<uint32_t*>(items[2].weight.mutable_data_ptr<float>());
      bits[0] ^= 1U << 20U;
    }
  }

private:
  Config config_;
};

/// The last error of a run on ranks that are threads.
std::string said_of_copies(const mh::MeshShape& shape, const mh::Recipe& recipe) {
  auto plugins = runs::host();
  mh::Registry registry(mh::PluginInfo{"org.example.flips", "1", "", "", "", "", {}});
  registry.add<Flips>("flips", "flips a bit");
  plugins.registry().merge(std::move(registry));
  try {
    mh::run_ranks(shape, [&](const mh::Mesh& mesh) {
      t_rank = mesh.rank();
      runs::Lines output;
      (void)mh::train(recipe, plugins, {.closing = false, .mesh = &mesh}, output);
    });
  } catch (const mh::Error& error) {
    CHECK(error.exit_code() == mh::exit_code::numbers);
    return std::string(error.what()) + "; " + error.hint();
  }
  return "";
}

} // namespace

TEST_CASE("a rank whose copy of a weight has another bit is named") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "a");
  recipe.precision = "fp32";
  recipe.guards.compare_copies = 2;
  recipe.checkpoint.interval = 2;
  recipe.parallel.strategies = {"data"};
  recipe.batch.micro = 1;
  CHECK(said_of_copies({.dp = 4}, recipe) == ""); // whose ranks agree in each bit
  recipe.optimizer.use = "flips";
  recipe.checkpoint.dir = folder / "b";
  const std::string said = said_of_copies({.dp = 4}, recipe);
  CHECK(said.starts_with("after step 4 "));
  CHECK(said.find("rank 1 (host ") != std::string::npos);
  CHECK(
      said.find(
          "holds other bits than most; when the step was done again from the same weights, all "
          "ranks came to the same bits: a fault of a moment (transient); they were the same "
          "after step 2"
      ) != std::string::npos
  );
  CHECK(runs::fs::exists(runs::step_folder(folder / "b", 2)));
  CHECK_FALSE(runs::fs::exists(runs::step_folder(folder / "b", 4))); // which would hold them
  recipe.optimizer.options = mh::Table{{"each", true}};
  recipe.checkpoint.dir = folder / "c";
  CHECK(
      said_of_copies({.dp = 4}, recipe).find("from the same weights, once more (persistent): ") !=
      std::string::npos
  );
}

TEST_CASE("copies that differ are told by majority, and without one as they are") {
  const auto found = mh::different_copies(
      {"a\n00000001 x\n00000002 y@0,4",
       "b\n00000001 x\n00000003 y@0,4",
       "c\n00000001 x",
       "d\n00000005 x"}
  );
  REQUIRE(found.has_value());
  CHECK(
      found->text() ==
      "2 slices of the weights differ between ranks that should hold the same bits, first x: rank 3 "
      "(host d) holds other bits than most"
  );
  const auto two = mh::different_copies({"a\n00000002 y@0,4", "b\n00000003 y@0,4"});
  REQUIRE(two.has_value());
  CHECK(
      two->text() ==
      "1 slice of the weights differs between ranks that should hold the same bits, first y@0,4: "
      "among ranks 0 (host a), 1 (host b) no majority agrees"
  );
  CHECK_FALSE(mh::different_copies({"a\n00000002 y", "b\n00000002 y", "c"}).has_value());
}

namespace {

/// A head in whose input the bits of an exponent stick on rank 1: from pass `from` on, `times` times.
class StickingHead : public mh::Block {
public:
  static inline std::atomic<int> passes{0}, from{0}, times{0};

  explicit StickingHead(std::unique_ptr<Block> head)
      : head_(std::move(head)) {}

  [[nodiscard]] mh::State forward(const mh::State& state, mh::StepContext& context) const override {
    if (context.mesh().rank() != 1 || ++passes < from || passes >= from + times) {
      return head_->forward(state, context);
    }
    const auto& hidden = state["hidden"];
    at::Tensor stuck = hidden.value.detach().clone();
    auto* bits = reinterpret_cast<uint32_t*>(stuck.mutable_data_ptr<float>());
    bits[0] |= 0x7F800000U;
    mh::State wrong = state;
    wrong.set("hidden", hidden.value + (stuck - hidden.value.detach()), hidden.dims);
    return head_->forward(wrong, context);
  }

private:
  std::unique_ptr<Block> head_;
};

class Sticking : public mh::Decoder {
public:
  using Config = mh::DecoderConfig;

  static void fields(mh::Fields<Config>& f) { mh::decoder_fields(f); }

  using Decoder::Decoder;

  [[nodiscard]] std::unique_ptr<mh::Block> head(mh::Builder& builder) const override {
    return std::make_unique<StickingHead>(Decoder::head(builder));
  }
};

std::string text_of(const runs::Lines& output) {
  std::string text;
  for (const auto& line : output.lines) {
    text += line + "\n";
  }
  return text;
}

/// A run of ranks that are threads, on which bits of rank 1 stick; what rank 0 says, and the error.
struct Stuck {
  std::string said, error;
};

Stuck run_sticking(const mh::MeshShape& shape, const mh::Recipe& recipe, int from, int times) {
  auto plugins = host();
  mh::Registry registry(mh::PluginInfo{"org.example.sticking", "1", "", "", "", "", {}});
  registry.add<Sticking>("sticking", "bits that stick");
  plugins.registry().merge(std::move(registry));
  StickingHead::passes = 0;
  StickingHead::from = from;
  StickingHead::times = times;
  Stuck result;
  try {
    mh::run_ranks(shape, [&](const mh::Mesh& mesh) {
      runs::Lines output;
      try {
        (void)mh::train(recipe, plugins, {.closing = false, .mesh = &mesh}, output);
      } catch (...) {
        if (mesh.rank() == 0) {
          result.said = text_of(output);
        }
        throw;
      }
      if (mesh.rank() == 0) {
        result.said = text_of(output);
      }
    });
  } catch (const mh::Error& error) {
    CHECK(error.exit_code() == mh::exit_code::numbers);
    result.error = error.what();
  }
  return result;
}

} // namespace

TEST_CASE(
    "a step that is doubted is done again: faults of a moment heal, ranks that compute wrongly are named"
) {
  const runs::Folder folder;
  auto recipe = recipe_of(folder / "sound", "none");
  recipe.model.use = "sticking";
  recipe.precision = "fp32";
  recipe.parallel.strategies = {"data"};
  recipe.batch.micro = 1;
  recipe.checkpoint.interval = 1;
  const auto sound = run_sticking({.dp = 4}, recipe, 0, 0);
  CHECK(sound.error == "");
  CHECK(sound.said.find("done again") == std::string::npos);

  recipe.checkpoint.dir = folder / "once"; // in step 5: one pass a step
  const auto once = run_sticking({.dp = 4}, recipe, 5, 1);
  CAPTURE(once.said);
  CHECK(once.error == "");
  CHECK(once.said.find("step 5: the ") != std::string::npos);
  CHECK(
      once.said.find("a fault of a moment (transient) in the forward pass of rank 1 (host ") !=
      std::string::npos
  );
  CHECK(runs::tensors(folder / "once", 12) == runs::tensors(folder / "sound", 12));

  for (const int64_t copies : {4, 2}) {
    recipe.checkpoint.dir = folder / ("always " + std::to_string(copies));
    const auto always = run_sticking({.dp = copies}, recipe, copies == 4 ? 5 : 9, 1 << 20);
    CAPTURE(always.error);
    CHECK(always.error.find("step 5: the ") == 0);
    CHECK(always.error.find("the same numbers again, and rank 1 (host ") != std::string::npos);
    CHECK(always.error.find("each time (persistent)") != std::string::npos);
    CHECK(always.error.find("the state before it is saved") != std::string::npos);
    CHECK(runs::tensors(recipe.checkpoint.dir, 4).size() > 0);
  }

  auto data = recipe_of(folder / "data", "nan"); // whose samples 16 to 19 no rank can compute
  data.precision = "fp32";
  data.parallel.strategies = {"data"};
  data.batch.micro = 1;
  data.guards.nan = "skip";
  const auto correct = run_sticking({.dp = 4}, data, 0, 0);
  CHECK(correct.error == "");
  CHECK(
      correct.said.find("step 5: the lm loss is nan; done again: the same numbers again, on other "
                        "ranks, too (correct)") != std::string::npos
  );
  CHECK(
      correct.said.find("skipped step 5: the lm loss is nan; samples 16 to 19") != std::string::npos
  );
}

TEST_CASE("ranks that compute otherwise are told by their neighbours' numbers") {
  const auto rank = [](int64_t copy, double own, double next) {
    return mh::ExchangedNumbers{"h", copy, "0.", {own, own * own}, {next, next * next}};
  };
  using Verdict = mh::Repetition::Verdict;
  const auto same = mh::compare_exchanged({rank(0, 1, 2), rank(1, 2, 3), rank(2, 3, 1)});
  CHECK(same.verdict == Verdict::correct);
  // copy 1 computes too much, of its own samples and of those of copy 2
  const auto one = mh::compare_exchanged({rank(0, 1, 2), rank(1, 9, 9), rank(2, 3, 1)});
  CHECK(one.verdict == Verdict::persistent);
  CHECK(one.ranks == std::vector<int64_t>{1});
  const auto two = mh::compare_exchanged({rank(0, NAN, INFINITY), rank(1, 2, 1)});
  CHECK(two.ranks == std::vector<int64_t>{0}); // the copy whose numbers are no numbers
  const auto both = mh::compare_exchanged({rank(0, 9, 2), rank(1, 8, 1)});
  CHECK(both.ranks == std::vector<int64_t>{0, 1}); // each has too much once: either may be
  CHECK(mh::are_apart(1, 1.02));
  CHECK_FALSE(mh::are_apart(1, 1.001));
  CHECK_FALSE(mh::are_apart(NAN, INFINITY)); // neither is a number
}
