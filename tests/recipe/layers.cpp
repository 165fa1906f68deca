#include "core/recipe/commands.hpp"
#include "core/recipe/paths.hpp"
#include "fixture.hpp"

#include <doctest/doctest.h>

namespace layers_tests {

using mh::test::Folder;
using mh::test::options;
using mh::test::resolve_file;

namespace {

const char* kTiny =
    "[model]\nuse = \"llama\"\nlayers = 4\nhidden = 64\nheads = 4\n[train]\niters = 10\n";

std::string text(const mh::Recipe& recipe, const char* key) {
  const mh::Value* value = recipe.tree.find_path(key);
  return value ? mh::to_text(*value) : "absent";
}

} // namespace

TEST_CASE("defaults are filled in") {
  const Folder folder;
  const mh::Recipe recipe = resolve_file(folder.write("tiny.toml", kTiny)).recipe;
  CHECK(recipe.name == "tiny");
  CHECK(recipe.optimizer.use == "adamw");
  CHECK(
      recipe.optimizer.options ==
      mh::Value(mh::Table{{"betas", mh::Value::Array{0.9, 0.95}}, {"eps", 1e-8}})
  );
  CHECK(recipe.recompute.use == "none");
  CHECK(recipe.tokenizer.use == "byte");
  CHECK(recipe.checkpoint.dir == "runs/tiny");
  CHECK(recipe.train.seed == 1234);
  CHECK(recipe.iterations() == 10);
  CHECK(recipe.model.options.find("seq_length") == nullptr);
  CHECK(recipe.model.seq_length == 1024);
}

TEST_CASE("facts of the machine decide precision and the data-parallel degree") {
  const Folder folder;
  const auto file = folder.write("tiny.toml", std::string("batch.micro = 3\n") + kTiny);
  CHECK(resolve_file(file, options(), {.bf16 = false}).recipe.precision == "fp32");
  CHECK(resolve_file(file, options(), {.bf16 = true}).recipe.precision == "bf16");
  CHECK(resolve_file(file, options(), {.world = 4}).recipe.batch.global == 12);
  mh::LoadOptions load = options();
  load.sets = {"precision=fp32"};
  CHECK(resolve_file(file, load, {.bf16 = true}).recipe.precision == "fp32");
}

TEST_CASE("preset < extended < recipe < program < --set") {
  const Folder folder;
  folder.write(
      "base.lua",
      R"(return { model = { preset = "llama2-7b", layers = 5, hidden = 128, heads = 4, ffn_hidden = 512 },
                               optimizer = { lr = 1e-3, betas = { 0.1, 0.2 } }, train = { iters = 10, seed = 1 } })"
  );
  const auto file =
      folder.write("child.toml", "extends = \"base\"\nmodel.layers = 6\noptimizer.betas = [0.5]\n");
  mh::LoadOptions load = options();
  load.layers = {{"--scale", mh::Table{{"train", mh::Table{{"seed", 2}, {"iters", 20}}}}}};
  load.sets = {"train.iters=30", "model.hidden=256", "train.iters=40", "name=two words"};
  load.sets.pop_back();
  const mh::Loaded loaded = mh::load_recipe(file, load);
  CHECK(loaded.layers.size() == 7);
  const mh::test::Plugins plugins;
  const mh::Resolved resolved = mh::resolve(loaded, plugins.lookup(), {});
  const mh::Recipe& recipe = resolved.recipe;
  CHECK(recipe.model.options.find("vocab")->as_integer() == 32000);
  CHECK(text(recipe, "model.layers") == "6");
  CHECK(text(recipe, "model.hidden") == "256");
  CHECK(text(recipe, "optimizer.betas") == "[0.5]");
  CHECK(text(recipe, "optimizer.lr") == "0.001");
  CHECK(text(recipe, "train.seed") == "2");
  CHECK(text(recipe, "train.iters") == "40");
  CHECK(recipe.tree.find_path("train.iters")->origin.where() == "--set:1:13");
  CHECK(recipe.tree.find_path("model.layers")->origin.where() == file.string() + ":2:16");
  CHECK(recipe.tree.find_path("optimizer.lr")->origin.layer() == "extends base");

  const std::string lines = mh::explain_recipe(loaded, resolved, "model.layers");
  CHECK(lines.find("model.layers = 6\n") == 0);
  CHECK(lines.find("     default") < lines.find("     preset llama2-7b"));
  CHECK(lines.find("     preset llama2-7b") < lines.find("     extends base"));
  CHECK(lines.find("     extends base") < lines.find("  -> recipe"));
  CHECK(lines.find("child.toml:2:16") != std::string::npos);
  CHECK(
      mh::explain_recipe(loaded, resolved, "train").find("train.seed = 2\n") != std::string::npos
  );
  CHECK(mh::test::refusal([&] {
          static_cast<void>(mh::explain_recipe(loaded, resolved, "train.sede"));
        }) == "this recipe has no key `train.sede`");
}

TEST_CASE("explain marks what counts: values given again, converted, derived, dropped") {
  const Folder folder;
  folder.write("base.toml", "optimizer = { use = \"sgd\", momentum = 0.5 }\ntrain.iters = 5\n");
  folder.write("middle.toml", "extends = \"base\"\noptimizer = { use = \"adamw\", lr = 1 }\n");
  const auto file = folder.write(
      "top.toml",
      "extends = \"middle\"\nmodel = { use = \"gpt\" }\noptimizer = { use = \"sgd\" }\n"
      "batch.micro = 4\n"
  );
  mh::LoadOptions load = options();
  load.sets = {"train.iters=5"};
  const mh::Loaded loaded = mh::load_recipe(file, load);
  const mh::test::Plugins plugins;
  const mh::Resolved resolved = mh::resolve(loaded, plugins.lookup(), {});
  const std::string at = folder.path().string() + "/";
  const auto explained = [&](const char* key) {
    const std::string text = mh::explain_recipe(loaded, resolved, key);
    return text.substr(text.find('\n', text.find('\n') + 1) + 1); // without value and meaning
  };
  CHECK(
      explained("train.iters") ==
      "     extends base  5  " + at + "base.toml:2:15\n" + "  -> --set         5  train.iters=5\n"
  );
  CHECK(
      explained("optimizer.lr") ==
      "     default         3e-4\n  -> extends middle  1     " + at + "middle.toml:2:35\n"
  );
  CHECK(explained("batch.global") == "     default  1\n  -> derived  4\n");
  CHECK(
      explained("optimizer.momentum") ==
      "  -> default       0.0\n     extends base  0.5  " + at +
          "base.toml:1:39  dropped: optimizer.use changes above it\n"
  );
  CHECK(explained("precision") == "     default  \"auto\"\n  -> machine  \"fp32\"\n");
}

TEST_CASE("another plugin starts its section anew, the core's fields stay") {
  const Folder folder;
  folder.write(
      "base.toml",
      std::string("optimizer = { use = \"adamw\", lr = 0.5, betas = [0.1, 0.2] }\n") + kTiny
  );
  const auto file =
      folder.write("child.toml", "extends = \"base.toml\"\noptimizer.use = \"sgd\"\n");
  const mh::Recipe recipe = resolve_file(file).recipe;
  CHECK(recipe.optimizer.use == "sgd");
  CHECK(recipe.optimizer.lr == 0.5);
  CHECK(text(recipe, "optimizer.betas") == "absent");
  mh::LoadOptions load = options();
  load.sets = {"data.use=mock"};
  folder.write("base.toml", std::string("data = { paths = [\"a\"], split = [1, 1, 0] }\n") + kTiny);
  const mh::Recipe mock = resolve_file(file, load).recipe;
  CHECK(text(mock, "data.paths") == "absent");
  CHECK(text(mock, "data.split") == "[1.0, 1.0, 0.0]");
}

TEST_CASE("--set of another plugin says which of its fields went with the old one") {
  const Folder folder;
  const auto file = folder.write("a.toml", kTiny);
  const auto said = [&](const std::vector<std::string>& sets) {
    mh::LoadOptions load = options();
    load.sets = sets;
    const mh::Loaded loaded = mh::load_recipe(file, load);
    return mh::fields_left_out(loaded, mh::resolve(loaded, mh::test::Plugins().lookup(), {}));
  };
  CHECK(said({"model.layers=3"}).empty());
  CHECK(said({"optimizer.use=sgd"}).empty());
  CHECK(
      said({"model.use=moe"}) ==
      std::vector<std::string>{"model.use = \"moe\" starts the section anew: the recipe's layers, "
                               "hidden, heads are left out; --set model.layers=... gives them back"}
  );
  CHECK(
      said({"model.use=moe", "model.hidden=64", "model.heads=4"}) ==
      std::vector<std::string>{
          "model.use = \"moe\" starts the section anew: the recipe's layers is "
          "left out; --set model.layers=... gives it back"}
  );
}

TEST_CASE("--set takes TOML values, and words") {
  const Folder folder;
  const auto file = folder.write("tiny.toml", kTiny);
  const auto with = [&file](const std::string& set, const char* key) {
    mh::LoadOptions load = options();
    load.sets = {set};
    return text(resolve_file(file, load).recipe, key);
  };
  CHECK(with("optimizer.betas=[0.8, 0.9]", "optimizer.betas") == "[0.8, 0.9]");
  CHECK(with("model.activation=swiglu", "model.activation") == "\"swiglu\"");
  CHECK(with("name=runs/a-b.c", "name") == "\"runs/a-b.c\"");
  CHECK(with("name=embed+5|3+head*", "name") == "\"embed+5|3+head*\"");
  CHECK(with("name=\"two words\"", "name") == "\"two words\"");
  const auto why = [&](const std::string& set) {
    return mh::test::refusal([&] { static_cast<void>(with(set, "name")); });
  };
  CHECK(why("name").starts_with("--set name has no key or no value"));
  CHECK(why("=3").starts_with("--set =3 has no key"));
  CHECK(why("name=two words").starts_with("this is no TOML"));
  CHECK(why("optimizer.lr=fast").starts_with("optimizer.lr is \"fast\", expected a number"));
  CHECK(why("optimizer.lrr=1").find("--> --set:1:11\n") != std::string::npos);
}

TEST_CASE("a plugin's declaration of a core field replaces the core's") {
  struct Own {
    double lr = 7;
  };

  mh::Fields<Own> fields;
  fields.add("lr", &Own::lr, "its own rate").at_least(5);
  mh::test::Plugins plugins;
  plugins.add(mh::Kind::optimizer, "own", fields.schema());
  const Folder folder;
  const auto file = folder.write("a.toml", std::string("optimizer.use = \"own\"\n") + kTiny);
  const mh::Recipe recipe =
      mh::resolve(mh::load_recipe(file, options()), plugins.lookup(), {}).recipe;
  CHECK(recipe.optimizer.lr == 7);
  CHECK(recipe.optimizer.options.find("lr")->as_number() == 7);
}

TEST_CASE("plugin files are meant from the folder of the recipe that names them") {
  const Folder folder;
  const auto file =
      folder.write("sub/a.toml", std::string("plugins = [\"../x.so\", \"/y.so\"]\n") + kTiny);
  const auto plugins = mh::load_recipe(file, options()).plugins();
  CHECK(plugins == std::vector<std::string>{(folder.path() / "x.so").string(), "/y.so"});
  CHECK(resolve_file(file).recipe.plugins == plugins);
}

TEST_CASE("what a run reads is meant from the folder of the file that says it") {
  const Folder folder;
  folder.write("base/data.lua", "return { data = { paths = { 'book.txt', '@torch-headers' } } }");
  const auto file = folder.write("sub/a.toml", std::string("extends = \"../base/data\"\n") + kTiny);
  const std::string book = (folder.path() / "base/book.txt").string();
  CHECK(text(resolve_file(file).recipe, "data.paths") == "[\"" + book + "\", \"@torch-headers\"]");
  mh::LoadOptions load = options();
  load.sets = {"data.paths=[\"../words.txt\"]"};
  const mh::Recipe set = resolve_file(file, load).recipe;
  const auto here = std::filesystem::current_path().parent_path() / "words.txt";
  CHECK(text(set, "data.paths") == "[\"" + here.string() + "\"]");
}

TEST_CASE("what it writes, too; a run without a name for its folder is kept in runs/NAME") {
  const Folder folder;
  const auto file = folder.write(
      "sub/b.toml", std::string("run_dir = \"../b\"\ncheckpoint.dir = \"runs/b\"\n") + kTiny
  );
  const mh::Recipe recipe = resolve_file(file).recipe;
  CHECK(recipe.checkpoint.dir == (folder.path() / "sub/runs/b").string());
  CHECK(recipe.run_dir == (folder.path() / "b").string());
  // On the command line from the working directory; a recipe that is shown means the same anywhere.
  mh::LoadOptions load = options();
  load.sets = {"checkpoint.dir=\"runs/c\"", "run_dir=\"c\""};
  const mh::Recipe set = resolve_file(file, load).recipe;
  CHECK(set.checkpoint.dir == "runs/c");
  CHECK(set.run_dir == "c");
  const auto here = std::filesystem::current_path();
  CHECK(text(set, "checkpoint.dir") == "\"" + (here / "runs/c").string() + "\"");
  const mh::Recipe plain = resolve_file(folder.write("sub/c.toml", kTiny)).recipe;
  CHECK(plain.checkpoint.dir == "runs/" + plain.name);
  CHECK(text(plain, "checkpoint.dir") == "\"\"");
  CHECK_FALSE(plain.run_dir.has_value());
  // A run's own copy of before that rule: from where the run was started.
  const auto copy =
      folder.write("b/recipe.toml", std::string("checkpoint.dir = \"runs/b\"\n") + kTiny);
  folder.write("b/metrics.jsonl", "");
  CHECK(resolve_file(copy).recipe.checkpoint.dir == "runs/b");
}

TEST_CASE("a path that an argument of another program says is meant from the working directory") {
  const std::string argument = "--vocab-file data/vocab.json";
  mh::Value path("data/vocab.json");
  path.origin.source = std::make_shared<const mh::Source>(mh::Source{argument, "", argument});
  const auto meant = std::filesystem::current_path() / "data/vocab.json";
  CHECK(mh::absolute_path(path).as_string() == meant.string());
}

TEST_CASE("a resolved recipe means the same files in any folder") {
  const Folder folder;
  const auto file =
      folder.write("sub/a.toml", std::string("data.paths = [\"book.txt\"]\n") + kTiny);
  const mh::Recipe recipe = resolve_file(file).recipe;
  const auto copy = folder.write(
      "runs/a/recipe.toml", mh::show_recipe(recipe, mh::RecipeFormat::toml, /*origins=*/false)
  );
  CHECK(text(resolve_file(copy).recipe, "data.paths") == text(recipe, "data.paths"));
}

TEST_CASE("a run folder of before that rule: its paths are meant from the working directory") {
  const Folder folder;
  const std::string old = std::string("data.paths = [\"book.txt\"]\n") + kTiny;
  const auto copy = folder.write("runs/a/recipe.toml", old);
  const auto here = [](const std::filesystem::path& of) {
    return "[\"" + (of / "book.txt").string() + "\"]";
  };
  CHECK(text(resolve_file(copy).recipe, "data.paths") == here(folder.path() / "runs/a"));
  folder.write("runs/a/metrics.jsonl", "");
  CHECK(text(resolve_file(copy).recipe, "data.paths") == here(std::filesystem::current_path()));
  const auto other = folder.write("runs/a/other.toml", old);
  CHECK(text(resolve_file(other).recipe, "data.paths") == here(folder.path() / "runs/a"));
}

TEST_CASE("recipes are found by name in the recipe folders") {
  CHECK(
      mh::load_recipe("gpt2_124m", options()).file ==
      (mh::test::recipes() / "gpt2_124m.lua").string()
  );
  CHECK(mh::test::refusal([] {
          static_cast<void>(mh::load_recipe("nowhere.lua", options()));
        }) == "there is no recipe nowhere.lua");
  try {
    static_cast<void>(mh::load_recipe("quikstart.lua", options()));
    FAIL("a recipe that does not exist was loaded");
  } catch (const mh::Error& error) {
    CHECK(error.hint() == "did you mean quickstart.lua?");
    CHECK(error.exit_code() == 2);
  }
}

} // namespace layers_tests
