// Plugins that a recipe names inside a section: strategies by their own keys, devices, launchers
// and schedules with options; what a checkpoint format says of itself.

#include "core/base/text.hpp"
#include "core/recipe/changes.hpp"
#include "core/recipe/commands.hpp"
#include "fixture.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace strategies_tests {

using namespace mh;

namespace {

/// A strategy that no file of the core knows.
struct MineKeys {
  struct Config {
    int64_t degree = 1;
    bool vocab = false;
  };

  static void fields(Fields<Config>& f) {
    f.add("mine", &Config::degree, "ranks that share what is mine")
        .at_least(1)
        .degree(MeshAxis::tp);
    f.add("mine_vocab", &Config::vocab, "the vocabulary too").along(MeshAxis::tp);
  }

  static void conditions(Conditions& c) {
    c.divides("model.hidden", "parallel.mine", "each rank has as many");
  }
};

/// One without keys.
struct PlainKeys {
  struct Config {};

  static void fields(Fields<Config>&) {}
};

struct DeviceKeys {
  struct Config {
    double peak = 0;
  };

  static void fields(Fields<Config>& f) {
    f.add("peak", &Config::peak, "of matrix products").at_least(0);
  }
};

struct LauncherKeys {
  struct Config {
    int64_t port = 29500;
    std::string hosts;
  };

  static void fields(Fields<Config>& f) {
    f.add("port", &Config::port, "where rank 0 listens").range(1, 65535);
    f.add("hosts", &Config::hosts, "file with a machine on each line").path();
  }
};

struct StorageKeys {
  struct Config {
    std::string root = "vault://root", ca_file = "ca.pem";
  };

  static void fields(Fields<Config>& f) {
    f.add("root", &Config::root, "where").path();
    f.add("ca_file", &Config::ca_file, "certificates").path();
  }
};

struct ScheduleKeys {
  struct Config {
    int64_t ahead = 1;
  };

  static void fields(Fields<Config>& f) {
    f.add("ahead", &Config::ahead, "passes ahead").at_least(1);
  }
};

class Subject {
public:
  Subject() {
    plugins_.declare<MineKeys>(Kind::strategy, "mine");
    plugins_.declare<PlainKeys>(Kind::strategy, "plain");
    plugins_.declare<DeviceKeys>(Kind::device, "chip");
    plugins_.declare<ScheduleKeys>(Kind::pipeline_schedule, "late");
    plugins_.declare<LauncherKeys>(Kind::launcher, "flock");
    plugins_.declare<StorageKeys>(Kind::storage, "vault");
  }

  /// A small recipe with these lines at its top level.
  [[nodiscard]] Loaded
  loaded(const std::string& lines, const LoadOptions& options = test::options()) const {
    const std::string base =
        "precision = \"fp32\"\nmodel = { use = \"gpt\", hidden = 768, heads = 12 }\n"
        "data = { use = \"mock\" }\ntrain = { iters = 10 }\n";
    return load_recipe(folder_.write("mine.toml", base + lines), options);
  }

  [[nodiscard]] Resolved
  resolved(const std::string& lines, const LoadOptions& options = test::options()) const {
    return resolve(loaded(lines, options), plugins_.lookup(), {});
  }

  [[nodiscard]] std::string refused(const std::string& lines) const {
    return test::refusal([&] { static_cast<void>(resolved(lines)); });
  }

  [[nodiscard]] std::string explained(const std::string& lines, const std::string& key) const {
    return explain_recipe(loaded(lines), resolved(lines), key);
  }

  [[nodiscard]] RecipeCatalogue catalogue() const { return plugins_.catalogue(); }

  [[nodiscard]] PluginLookup lookup() const { return plugins_.lookup(); }

private:
  test::Plugins plugins_;
  test::Folder folder_;
};

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

using Names = std::vector<std::string>;

} // namespace

TEST_CASE("an architecture names parts of its own for recompute") {
  struct Shifted {
    struct Config {};

    static void fields(Fields<Config>&) {}

    static std::vector<std::string> recompute_parts() { return {"token_shift"}; }
  };

  test::Plugins plugins;
  plugins.declare<Shifted>(Kind::architecture, "shifted");
  const auto refused = [&](const std::string& model, const std::string& part) {
    const test::Folder folder;
    const auto loaded = load_recipe(
        folder.write(
            "mine.toml",
            "precision = \"fp32\"\nmodel = { use = \"" + model +
                "\" }\ndata = { use = \"mock\" }\ntrain = { iters = 10 }\n"
                "recompute = { use = \"selective\", parts = [\"norms\", \"" +
                part + "\"] }\n"
        ),
        test::options()
    );
    return test::refusal([&] { static_cast<void>(resolve(loaded, plugins.lookup(), {})); });
  };
  CHECK(refused("shifted", "token_shift") == "");
  const std::string unknown = refused("shifted", "shift");
  CHECK(holds(unknown, "recompute.parts holds \"shift\", expected"));
  CHECK(holds(unknown, "token_shift"));
  const std::string of_another = refused("gpt", "token_shift");
  CHECK(holds(of_another, "recompute.parts holds \"token_shift\", expected"));
}

TEST_CASE("a zero-bubble schedule refuses whatever policy recomputes whole blocks, by any name") {
  struct Parts {
    struct Config {};

    static void fields(Fields<Config>&) {}
  };

  struct Blocks : Parts {
    static bool recomputes_blocks() { return true; }
  };

  test::Plugins plugins;
  plugins.declare<Parts>(Kind::recompute, "thrifty");
  plugins.declare<Blocks>(Kind::recompute, "whole");
  const auto refused = [&](const std::string& policy, const std::string& schedule) {
    const test::Folder folder;
    const auto loaded = load_recipe(
        folder.write(
            "mine.toml",
            "precision = \"fp32\"\nmodel = { use = \"gpt\" }\ndata = { use = \"mock\" }\n"
            "train = { iters = 10 }\nparallel = { pipeline = 2, schedule = \"" +
                schedule + "\" }\nrecompute = { use = \"" + policy + "\" }\n"
        ),
        test::options()
    );
    return test::refusal([&] { static_cast<void>(resolve(loaded, plugins.lookup(), {})); });
  };
  const std::string message = "recompute.use \"whole\" does not work with the zero-bubble schedule";
  CHECK(holds(refused("whole", "zb-h1"), message));
  CHECK(refused("whole", "1f1b") == "");
  CHECK(refused("thrifty", "zb-h1") == "");
}

TEST_CASE("a strategy's degree puts it in force, whatever its key is called") {
  const Subject subject;
  CHECK(subject.resolved("").recipe.parallel.strategies.empty());
  const auto mine = subject.resolved("parallel = { mine = 2, mine_vocab = true }").recipe;
  CHECK(mine.parallel.strategies == Names{"mine"});
  CHECK(mine.parallel.tensor == 2); // ranks along tp
  CHECK(mine.parallel.word(MeshAxis::tp) == "mine");
  CHECK(mine.parallel.model_ranks() == 2);
  const auto tensor =
      subject.resolved("parallel = { tensor = 2, sequence = true, zero = 1 }").recipe;
  CHECK(tensor.parallel.strategies == Names{"tensor", "sequence", "zero"});
  CHECK(tensor.parallel.word(MeshAxis::tp) == "tensor");
  CHECK(tensor.parallel.sequence);
  CHECK(tensor.parallel.zero == 1);
}

TEST_CASE("a strategy may be named, without a key of its own") {
  const Subject subject;
  CHECK(
      subject.resolved("parallel = { strategies = [\"plain\"] }").recipe.parallel.strategies ==
      Names{"plain"}
  );
  const std::string wrong = subject.refused("parallel = { strategies = [\"plian\"] }");
  CHECK(holds(wrong, "parallel.strategies holds \"plian\", expected the name of a plugin"));
  CHECK(holds(wrong, "did you mean `plain`?"));
  CHECK(holds(
      subject.refused("parallel = { strategies = [\"plain\", \"plain\"] }"),
      "parallel.strategies names plain twice"
  ));
}

TEST_CASE("a strategy's keys are checked, explained, and known to editors") {
  const Subject subject;
  CHECK(holds(subject.refused("parallel = { mine = 0 }"), "parallel.mine is 0, expected at least 1")
  );
  CHECK(holds(subject.refused("parallel = { miner = 2 }"), "did you mean `mine`?"));
  CHECK(holds(subject.refused("guards.mine = 2"), "did you mean `parallel.mine`?"));
  CHECK(holds(
      subject.refused("parallel = { mine = 5 }"),
      "model.hidden 768 is not divisible by parallel.mine 5"
  ));
  CHECK(holds(
      subject.refused("parallel = { mine = 2, tensor = 2 }"),
      "parallel.mine and parallel.tensor are both above 1, expected one of them"
  ));
  CHECK(holds(
      subject.explained("parallel = { mine = 2 }", "parallel.mine"),
      "parallel.mine = 2\n  ranks that share what is mine; integer, at least 1"
  ));
  CHECK(holds(json_schema(subject.catalogue()), "\"mine_vocab\""));
  CHECK(holds(lua_stubs(subject.catalogue()), "---@field mine? integer # ranks that share"));
}

TEST_CASE("a device and a schedule take options") {
  const Subject subject;
  const std::string lines = "device = { use = \"chip\", peak = 2e11 }\n"
                            "parallel = { pipeline = 2, schedule = { use = \"late\", ahead = 3 } }";
  const Recipe recipe = subject.resolved(lines).recipe;
  CHECK(recipe.device.use == "chip");
  CHECK(recipe.device.options.find("peak")->as_number() == 2e11);
  CHECK(recipe.parallel.schedule.use == "late");
  CHECK(recipe.parallel.schedule.options.find("ahead")->as_integer() == 3);
  CHECK(subject.resolved("device = \"chip\"").recipe.device.use == "chip"); // a bare name
  CHECK_THROWS_WITH_AS(
      static_cast<void>(subject.explained("device = \"chip\"", "device.peak")),
      "device is \"chip\" here, without options",
      Error
  );
  CHECK(holds(
      subject.explained(lines, "device.peak"),
      "device.peak = 2e11\n  of matrix products; number, at least 0"
  ));
  CHECK(holds(subject.explained(lines, "parallel.schedule.ahead"), "-> recipe   3"));
  CHECK(holds(
      subject.refused("device = { use = \"chip\", peek = 1 }"), "unknown option `peek` in device"
  ));
  CHECK(holds(
      subject.refused("parallel = { schedule = { use = \"late\", ahead = 0 } }"),
      "parallel.schedule.ahead is 0, expected at least 1"
  ));
  CHECK(holds(subject.refused("device = { use = \"chop\" }"), "did you mean `chip`?"));
  CHECK(holds(json_schema(subject.catalogue()), "\"peak\""));
  CHECK(holds(lua_stubs(subject.catalogue()), "peak?: number"));
}

TEST_CASE("options join the bare name of a plugin, and leave with another one") {
  const Subject subject;
  const auto resolved_with = [&](const std::string& lines, const std::vector<std::string>& sets) {
    auto options = test::options();
    options.sets = sets;
    return subject.resolved(lines, options).recipe;
  };
  const Recipe recipe = resolved_with(
      "device = \"chip\"\nparallel = { pipeline = 2, schedule = \"late\" }",
      {"device.peak=3e11", "parallel.schedule.ahead=4"}
  );
  CHECK(recipe.device.use == "chip");
  CHECK(recipe.device.options.find("peak")->as_number() == 3e11);
  CHECK(recipe.parallel.schedule.options.find("ahead")->as_integer() == 4);
  CHECK(
      resolved_with("device = { use = \"chip\", peak = 1 }", {"device.use=cpu"}).device.use == "cpu"
  );
}

TEST_CASE("a storage takes options, and a run that saves there has a run folder on the disk") {
  const Subject subject;
  const auto recipe = subject
                          .resolved("name = \"large\"\ncheckpoint.dir = \"vault://a//b\"\n"
                                    "storage = { use = \"vault\", ca_file = \"mine.pem\" }")
                          .recipe;
  REQUIRE(recipe.storage.has_value());
  CHECK(recipe.storage->use == "vault");
  CHECK(recipe.storage->options.find("root")->as_string() == "vault://root");
  CHECK(recipe.storage->options.find("ca_file")->as_string().starts_with("/"));
  CHECK(recipe.checkpoint.dir == "vault://a//b");
  CHECK(recipe.run_dir == "runs/large");
  CHECK(
      subject.resolved("checkpoint.dir = \"vault://a\"\nrun_dir = \"/b\"").recipe.run_dir == "/b"
  );
  CHECK_FALSE(subject.resolved("checkpoint.dir = \"a\"").recipe.run_dir.has_value());
  CHECK_FALSE(subject.resolved("").recipe.storage.has_value());
  CHECK(holds(subject.refused("storage = \"valt\""), "did you mean `vault`?"));
  CHECK(holds(subject.refused("storage = { use = \"vault\", rot = 1 }"), "unknown option `rot`"));
  CHECK(holds(
      subject.refused("run_dir = \"vault://a\""),
      "run_dir is \"vault://a\", expected a folder of this machine"
  ));
  for (const char* line : {"checkpoint.dir = \"valt://a\"", "plugins = [\"valt://a\"]"}) {
    const std::string wrong = subject.refused(line);
    CHECK(holds(wrong, "storage of \"valt://a\" is \"valt\", expected the name of a plugin"));
    CHECK(holds(wrong, "did you mean `vault`?"));
  }
}

TEST_CASE("a scheme is the word before ://") {
  CHECK(scheme_of("s3://bucket/key") == "s3");
  for (const char* path : {"", "/a", "a/b", "://a", "a/b://c", "C://a", "s3:/bucket", "s3"}) {
    CAPTURE(path);
    CHECK_FALSE(scheme_of(path).has_value());
  }
}

TEST_CASE("a launcher takes options, and is resolved before the rest of the recipe") {
  const Subject subject;
  const std::string lines = "launcher = { use = \"flock\", hosts = \"nodes\" }";
  const auto early = resolve_launcher(subject.loaded(lines), subject.lookup());
  const Recipe recipe = subject.resolved(lines).recipe;
  REQUIRE(early.has_value());
  REQUIRE(recipe.launcher.has_value());
  for (const auto* launcher : {&*early, &*recipe.launcher}) {
    CHECK(launcher->use == "flock");
    CHECK(launcher->options.find("port")->as_integer() == 29500);
    CHECK(launcher->options.find("hosts")->as_string().starts_with("/")
    ); // from the recipe's folder
  }
  CHECK(resolve_launcher(subject.loaded("launcher = \"flock\""), subject.lookup())->use == "flock");
  CHECK_FALSE(resolve_launcher(subject.loaded(""), subject.lookup()).has_value());
  CHECK_FALSE(subject.resolved("").recipe.launcher.has_value());
  // Whatever else is wrong: that is said once the rank is known.
  const std::string more = "\nbatch = { micro = 0 }";
  CHECK(resolve_launcher(subject.loaded(lines + more), subject.lookup()).has_value());
  CHECK(holds(subject.refused(lines + more), "batch.micro is 0"));

  const auto refused = [&](const std::string& text) {
    const std::string said = subject.refused(text);
    const std::string first = test::refusal([&] {
      static_cast<void>(resolve_launcher(subject.loaded(text), subject.lookup()));
    });
    CHECK(first == said);
    return said;
  };
  CHECK(holds(
      refused("launcher = { use = \"flock\", port = 0 }"), "launcher.port is 0, expected at least 1"
  ));
  CHECK(holds(
      refused("launcher = { use = \"flock\", prot = 1 }"), "unknown option `prot` in launcher"
  ));
  CHECK(holds(refused("launcher = \"flok\""), "did you mean `flock`?"));
  CHECK(holds(refused("launcher = { port = 1 }"), "launcher has options, but no `use`"));
  CHECK(holds(refused("launcher = 7"), "launcher is 7, expected a name, or a table of `use`"));

  CHECK(holds(
      subject.explained(lines, "launcher.port"),
      "launcher.port = 29500\n  where rank 0 listens; integer, at least 1 and at most 65535"
  ));
  CHECK(holds(json_schema(subject.catalogue()), "\"hosts\""));
  CHECK(holds(lua_stubs(subject.catalogue()), "port?: integer"));
  // If there is none, no name is right, and none is wrong for an editor.
  const test::Plugins bare;
  const auto schema = nlohmann::json::parse(json_schema(bare.catalogue()));
  CHECK_FALSE(schema["properties"]["launcher"].contains("enum"));
  CHECK(holds(lua_stubs(bare.catalogue()), "---@field launcher? string #"));
}

TEST_CASE("checkpoints are written in a format that writes") {
  test::Plugins plugins;
  plugins.add(Kind::checkpoint_format, "reads", Schema{}).writes = false;
  plugins.add(Kind::checkpoint_format, "writes", Schema{});
  const auto refused = [&](const std::string& use, const Facts& facts) {
    const test::Folder folder;
    const auto loaded = load_recipe(
        folder.write(
            "mine.toml",
            "precision = \"fp32\"\nmodel = { use = \"gpt\" }\ndata = { use = \"mock\" }\n"
            "train = { iters = 10 }\ncheckpoint.use = \"" +
                use + "\"\n"
        ),
        test::options()
    );
    return test::refusal([&] { static_cast<void>(resolve(loaded, plugins.lookup(), facts)); });
  };
  CHECK(holds(refused("reads", {}), "checkpoint.use is \"reads\", a format that is only read"));
  CHECK(refused("reads", {.trains = false}).empty());
  CHECK(refused("writes", {}).empty());
}

TEST_CASE("a run's folder may be apart from its checkpoints") {
  const Subject subject;
  const auto places = [&](const std::string& lines) {
    const Recipe recipe = subject.resolved(lines).recipe;
    CHECK(recipe.run_dir.has_value() == (recipe.run_folder() != recipe.checkpoint.dir));
    return std::pair(recipe.run_folder(), recipe.checkpoint.dir);
  };
  using Two = std::pair<std::string, std::string>;
  CHECK(places("") == Two("runs/mine", "runs/mine"));
  CHECK(places("checkpoint.dir = \"/a\"") == Two("/a", "/a"));
  CHECK(places("run_dir = \"/a\"") == Two("/a", "/a"));
  CHECK(places("run_dir = \"/a\"\ncheckpoint.dir = \"/a\"") == Two("/a", "/a"));
  CHECK(places("run_dir = \"/a\"\ncheckpoint.dir = \"/store/b\"") == Two("/a", "/store/b"));
}

TEST_CASE("what is shown of such a recipe resolves to the same") {
  const Subject subject;
  const std::string lines = "device = { use = \"chip\", peak = 2e11 }\n"
                            "parallel = { mine = 2, schedule = { use = \"late\" } }";
  const Recipe recipe = subject.resolved(lines).recipe;
  const test::Folder folder;
  for (const auto& [format, file] :
       {std::pair(RecipeFormat::toml, "again.toml"),
        std::pair(RecipeFormat::lua, "again.lua"),
        std::pair(RecipeFormat::json, "again.json")}) {
    CAPTURE(file);
    const auto written = folder.write(file, show_recipe(recipe, format, /*origins=*/false));
    test::Plugins plugins;
    plugins.declare<MineKeys>(Kind::strategy, "mine");
    plugins.declare<DeviceKeys>(Kind::device, "chip");
    plugins.declare<ScheduleKeys>(Kind::pipeline_schedule, "late");
    const Recipe again =
        resolve(load_recipe(written, test::options()), plugins.lookup(), {}).recipe;
    CHECK(differences(recipe.tree, again.tree).empty());
  }
}

TEST_CASE("a resumed run may have another device") {
  const Subject subject;
  const auto saved =
      section_texts(subject.resolved("device = { use = \"chip\", peak = 1e11 }").recipe.tree);
  const Resolved now = subject.resolved("device = { use = \"chip\", peak = 2e11 }");
  const auto changes = changes_since(saved, now.recipe.tree, now.schemas);
  REQUIRE(changes.size() == 1);
  CHECK(changes.front().key == "device.peak");
  CHECK(changes.front().may_change);
  const Resolved plain = subject.resolved("");
  for (const KeyChange& change : changes_since(saved, plain.recipe.tree, plain.schemas)) {
    CAPTURE(change.key);
    CHECK(change.may_change);
  }
}

} // namespace strategies_tests
