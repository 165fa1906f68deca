#include "megahost/abi.hpp"
#include "megahost/host.hpp"
#include "megahost/lr_schedule.hpp"
#include "megahost/strategy.hpp"

#include <ATen/core/dispatch/Dispatcher.h>

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace fs = std::filesystem;

namespace {

const fs::path kFixtures = std::getenv("MEGAHOST_FIXTURES");

const std::vector<fs::path> kNoFolders;

std::string fixture(const std::string& name) {
  return (kFixtures / (name + ".so")).string();
}

struct Refusal {
  std::string sentence, hint;
  int exit_code = 0;
};

template <class Do>
Refusal refusal(Do what) {
  try {
    what();
  } catch (const mh::Error& error) {
    return {error.what(), error.hint(), error.exit_code()};
  }
  return {};
}

Refusal refused(const std::string& file) {
  return refusal([&] { mh::Host(kNoFolders).load(file); });
}

/// A folder of its own, removed at the end.
struct Folder {
  fs::path path;

  Folder() {
    std::string name = fs::temp_directory_path() / "megahost-XXXXXX";
    path = mkdtemp(name.data());
  }

  ~Folder() { fs::remove_all(path); }
};

/// The text with the differences between builds replaced by a word.
std::string plain(std::string text) {
  const std::string tag = MH_ABI_TAG, hash = tag.substr(tag.rfind('_') + 1);
  for (const auto& [what, word] :
       {std::pair<std::string, std::string>{tag, "TAG"}, {hash, "HASH"}}) {
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what)) {
      text.replace(at, what.size(), word);
    }
  }
  return text;
}

constexpr const char* kRebuild =
    "build it again with this SDK: meson setup --wipe BUILD && meson compile -C BUILD";

} // namespace

TEST_CASE("a good plugin registers, and makes what it offers") {
  mh::Host host(kNoFolders);
  const mh::PluginInfo& info = host.load(fixture("good"));
  CHECK(info.id == "org.megahost.test");
  CHECK(info.version == "1.2.3");
  CHECK(info.license == "unknown");
  CHECK(info.abi_tag == MH_ABI_TAG);
  CHECK(info.built_with.find("LibTorch " TORCH_VERSION) == 0);

  const auto* entry = host.find(mh::Kind::lr_schedule, "fixed");
  REQUIRE(entry != nullptr);
  CHECK(entry->full_name() == "org.megahost.test/fixed");
  CHECK(entry->schema.find("factor")->max == 1.0);
  CHECK(host.find(mh::Kind::lr_schedule, "org.megahost.test/fixed") == entry);
  CHECK(host.find(mh::Kind::optimizer, "fixed") == nullptr);

  const auto schedule =
      host.make<mh::LrSchedule>("fixed", mh::Table{{"factor", 0.5}}, {.lr = 0.25});
  CHECK(schedule->lr({.updates = 7}) == 0.125);
  CHECK(host.make<mh::LrSchedule>("fixed", mh::Table(), {.lr = 0.25})->lr({}) == 0.25);
  CHECK_THROWS_AS((void)host.make<mh::LrSchedule>("fixed", mh::Table{{"factor", 2.0}}), mh::Error);
}

TEST_CASE("a plugin is opened once") {
  mh::Host host(kNoFolders);
  const mh::PluginInfo* first = &host.load(fixture("good"));
  CHECK(&host.load(kFixtures / "." / "good.so") == first);
  CHECK(host.registry().entries().size() == 1);
}

TEST_CASE("threads that want plugins at the same time open each once") {
  for (int round = 0; round < 20; ++round) {
    Folder folder;
    fs::copy(fixture("good"), folder.path / "optimizers-fixed.so");
    fs::copy(fixture("other_id"), folder.path / "optimizers-second.so");
    mh::Host host(std::vector{folder.path});
    std::atomic<int> made = 0, waiting = 8;
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, name = i % 2 == 0 ? "second" : "org.megahost.test/fixed"] {
        for (--waiting; waiting > 0;) {
        }
        try {
          made += host.make<mh::LrSchedule>(name, mh::Table(), {.lr = 0.5}) != nullptr ? 1 : 0;
        } catch (const mh::Error&) { // counted below, as made too few
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK(made == 8);
  }
}

TEST_CASE("what a plugin makes outlives the host that opened it") {
  std::unique_ptr<mh::LrSchedule> schedule;
  {
    mh::Host host(kNoFolders);
    host.load(fixture("good"));
    schedule = host.make<mh::LrSchedule>("fixed", mh::Table(), {.lr = 0.5});
  }
  CHECK(schedule->lr({}) == 0.5);
}

// Before any other case opens static_operator: its operators stay for the life of a process.
TEST_CASE("scan reports every file, and survives each") {
  Folder folder;
  for (const char* name : {"good", "other_torch", "aborts", "static_operator", "no_entry"}) {
    fs::copy(fixture(name), folder.path / (std::string(name) + ".so"));
  }
  const auto found = mh::Host(std::vector{folder.path}).scan();
  REQUIRE(found.size() == 5);
  const auto skipped = [&](size_t i) { return found[i].skipped; };
  CHECK(
      skipped(0).find("aborts.so ended the process that opened it (Aborted)") != std::string::npos
  );
  CHECK(found[1].plugin.id == "org.megahost.test");
  REQUIRE(found[1].offers.size() == 1);
  CHECK(found[1].offers[0].name == "fixed");
  CHECK(found[1].offers[0].kind == mh::Kind::lr_schedule);
  CHECK(found[1].offers[0].summary == "the same rate at every step");
  CHECK(skipped(2).find("no megahost plugin") != std::string::npos);
  CHECK(skipped(3).find("LibTorch 2.9.0") != std::string::npos);
  CHECK(skipped(4).find("mh_test_static::twice") != std::string::npos);
}

TEST_CASE("refusals before anything of the plugin runs") {
  const std::string torch = TORCH_VERSION;
  const std::string tag = MH_ABI_TAG;
  const std::string variant = tag.find("_cu130_") != std::string::npos ? "cu130" : "cpu";

  Refusal r = refused(fixture("other_torch"));
  CHECK(
      r.sentence == fixture("other_torch") +
                        " was built for LibTorch 2.9.0 (cu128), this megahost has LibTorch " +
                        torch + " (" + variant + ")"
  );
  CHECK(r.hint == kRebuild);
  CHECK(r.exit_code == 2);

  r = refused(fixture("other_sdk"));
  CHECK(
      r.sentence ==
      fixture("other_sdk") + " was built for plugin SDK 999, this megahost has plugin SDK 1"
  );
  CHECK(r.hint == kRebuild);

  r = refused(fixture("other_headers"));
  CHECK(
      plain(r.sentence) ==
      fixture("other_headers") +
          " was built with other headers of plugin SDK 1 (hash 0123456789ab) than "
          "this megahost (hash HASH)"
  );

  r = refused(fixture("other_library"));
  CHECK(
      r.sentence == fixture("other_library") +
                        " was built with the C++ library libcxx (C++11 ABI 1), this megahost with "
                        "libstdcxx (C++11 ABI 1)"
  );

  r = refused(fixture("no_ndebug"));
  CHECK(
      r.sentence ==
      fixture("no_ndebug") +
          " was compiled without -DNDEBUG, this megahost and its LibTorch with it, and "
          "some types have another layout without it"
  );
  CHECK(r.hint == "compile it with -DNDEBUG, debug builds too (meson: b_ndebug=true)");

  r = refused(fixture("no_pin"));
  CHECK(
      plain(r.sentence) ==
      fixture("no_pin") + " does not say for which LibTorch and SDK it was built, this megahost "
                          "is TAG"
  );

  r = refused(fixture("no_entry"));
  CHECK(
      r.sentence == fixture("no_entry") +
                        " is a shared library but no megahost plugin: it exports no mh_plugin_entry"
  );
  CHECK(r.hint == "end one of its sources with MH_PLUGIN (megahost/plugin.hpp)");
}

TEST_CASE("the dynamic linker refuses another pin too") {
  // Without the check that comes before, RTLD_NOW still finds no such symbol.
  CHECK(refused(fixture("missing_symbol")).sentence.find("nowhere_defined") != std::string::npos);
  CHECK(refused(fixture("missing_symbol")).exit_code == 2);
}

TEST_CASE("files that are no shared library") {
  Folder folder;
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder.path / name, std::ios::binary) << text;
    return (folder.path / name).string();
  };
  const std::string notes = write("notes.so", "remember the milk\nand the bread\n");
  Refusal r = refused(notes);
  CHECK(r.sentence == notes + " is no shared library: it begins with \"remember the milk\"");
  CHECK(r.hint == "name the .so file that the plugin's build made");
  CHECK(r.exit_code == 2);

  const std::string empty = write("empty.so", "");
  CHECK(refused(empty).sentence == empty + " is no shared library: it is empty");
  const std::string absent = folder.path / "absent.so";
  CHECK(refused(absent).sentence == absent + " cannot be read: No such file or directory");
  CHECK(refused(folder.path).sentence == folder.path.string() + " is a folder");

  std::ifstream in(fixture("good"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  const std::string half = write("half.so", whole.substr(0, whole.size() / 2));
  CHECK(
      refused(half).sentence ==
      half + " is damaged: it is cut short, or has no table of dynamic symbols"
  );
  std::string arm = whole;
  arm[18] = '\xb7';
  if (arm != whole) {
    const std::string other = write("arm.so", arm);
    CHECK(refused(other).sentence == other + " is a shared library for another processor");
  }
  const std::string program = fs::canonical("/proc/self/exe");
  CHECK(refused(program).sentence.find(program) == 0);
}

TEST_CASE("a library that a plugin needs and that is not there is named") {
  std::ifstream in(fixture("good"), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const std::string here = "libstdc++.so.6", nowhere = "libstdc++.so.0";
  for (size_t at = bytes.find(here); at != std::string::npos; at = bytes.find(here)) {
    bytes.replace(at, here.size(), nowhere);
  }
  Folder folder;
  const std::string file = folder.path / "needy.so";
  std::ofstream(file, std::ios::binary) << bytes;
  const Refusal r = refused(file);
  CHECK(r.sentence == file + " needs the library libstdc++.so.0, which is not on this machine");
  CHECK(r.hint == "install the package that has libstdc++.so.0, or do without the plugin");
}

TEST_CASE("every truncation of a plugin is refused") {
  std::ifstream in(fixture("good"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  Folder folder;
  const fs::path file = folder.path / "damaged.so";
  for (size_t size = 0; size < whole.size(); size += whole.size() / 97 + 1) {
    std::ofstream(file, std::ios::binary) << whole.substr(0, size);
    CHECK_FALSE(refused(file).sentence.empty());
  }
}

TEST_CASE("refusals after opening") {
  Refusal r = refused(fixture("other_entry"));
  CHECK(
      r.sentence ==
      fixture("other_entry") +
          " has an entry of plugin SDK 2 and 80 bytes, this megahost's is of SDK 1 and 72 "
          "bytes"
  );
  CHECK(r.hint == kRebuild);

  r = refused(fixture("static_operator"));
  CHECK(
      r.sentence == fixture("static_operator") +
                        " registers the operator mh_test_static::twice from a static constructor "
                        "(TORCH_LIBRARY), megahost takes operators only in MH_PLUGIN"
  );
  CHECK(
      r.hint ==
      "register it there: registry.operators(\"mh_test_static\", [](torch::Library& m) { ... })"
  );
  CHECK(r.exit_code == 2);
}

TEST_CASE("refusals while registering leave nothing behind") {
  mh::Host host(kNoFolders);
  const auto load = [&](const char* name) { return refusal([&] { host.load(fixture(name)); }); };
  Refusal r = load("throws");
  CHECK(
      r.sentence ==
      fixture("throws") + " (org.megahost.throws) threw while registering: no licence file"
  );
  CHECK(r.exit_code == 2);
  r = load("throws_int");
  CHECK(
      r.sentence == fixture("throws_int") +
                        " (org.megahost.throws) threw something while registering that is no "
                        "std::exception"
  );
  r = load("twice");
  CHECK(
      r.sentence == fixture("twice") +
                        " (org.megahost.twice) failed while registering: " + fixture("twice") +
                        " registers the lr_schedule org.megahost.twice/same twice"
  );
  CHECK(r.hint == "give one of the two another name in MH_PLUGIN");
  r = load("bad_name");
  CHECK(r.sentence.find("is not made of a-z, 0-9, _, - and .") != std::string::npos);
  CHECK(host.registry().entries().empty());
}

TEST_CASE("a full name that is taken names both files") {
  mh::Host host(kNoFolders);
  host.load(fixture("good"));
  const Refusal r = refusal([&] { host.load(fixture("good_again")); });
  CHECK(
      r.sentence == "the lr_schedule org.megahost.test/fixed is in two plugins, " +
                        fixture("good") + " and " + fixture("good_again")
  );
  CHECK(r.hint == "load only one of them, or give one another id in MH_PLUGIN");
  CHECK(r.exit_code == 2);
  CHECK(host.registry().entries().size() == 1);
}

TEST_CASE("a short name that two plugins have must be written in full") {
  mh::Host host(kNoFolders);
  host.load(fixture("good"));
  host.load(fixture("other_id"));
  const Refusal r = refusal([&] { (void)host.find(mh::Kind::lr_schedule, "fixed"); });
  CHECK(
      r.sentence == "the lr_schedule \"fixed\" could be org.megahost.test/fixed (" +
                        fixture("good") + ") or org.megahost.other/fixed (" + fixture("other_id") +
                        ")"
  );
  CHECK(r.hint == "write the full name");
  CHECK(host.find(mh::Kind::lr_schedule, "org.megahost.other/fixed")->plugin->version == "0.1.0");
}

TEST_CASE("a key of `parallel` belongs to one strategy") {
  struct Mine : mh::Strategy {
    struct Config {
      int64_t degree = 1;
    };

    static void fields(mh::Fields<Config>& f) {
      f.add("shards", &Config::degree, "ranks that share").degree(mh::MeshAxis::tp);
    }

    Mine(const Config&, const Args&) {}

    void rules(mh::Rules&) const override {}
  };

  mh::Registry registry(mh::PluginInfo{.id = "one"});
  registry.add<Mine>("first", "");
  const Refusal r = refusal([&] { registry.add<Mine>("second", ""); });
  CHECK(
      r.sentence ==
      "the strategies one/first (plugin one) and one/second (plugin one) both have the key "
      "parallel.shards"
  );
  CHECK(registry.entries().size() == 1);
}

TEST_CASE("operators registered in MH_PLUGIN work") {
  mh::Host host(kNoFolders);
  host.load(fixture("operators"));
  CHECK(c10::Dispatcher::singleton().findSchema({"mh_test::twice", ""}).has_value());
}

TEST_CASE("a name is found in the search path, and only its plugin is opened") {
  Folder folder;
  fs::copy(fixture("other_id"), folder.path / "optimizers-many.so");
  fs::copy(fixture("aborts"), folder.path / "optimizers-aborts.so");
  fs::copy(fixture("throws"), folder.path / "zebra.so");
  std::ofstream(folder.path / "notes.so") << "text";

  mh::Host host(std::vector{folder.path});
  CHECK(host.registry().entries().empty());
  REQUIRE(host.find(mh::Kind::lr_schedule, "second") != nullptr);
  CHECK(host.registry().entries().size() == 2);
  CHECK(host.find(mh::Kind::lr_schedule, "never") == nullptr);

  const Refusal r = refusal([&] { host.require(mh::Kind::lr_schedule, "secnd"); });
  CHECK(r.sentence == "no plugin offers the lr_schedule \"secnd\"");
  CHECK(
      r.hint ==
      "did you mean second? there are fixed, second (searched: " + folder.path.string() + ")"
  );
}

TEST_CASE("what is built in is found without a child process, in a file of any name") {
  const auto faults_of_children = [] {
    rusage used{};
    getrusage(RUSAGE_CHILDREN, &used);
    return used.ru_minflt;
  };
  const long before = faults_of_children();
  mh::Host host;
  CHECK(
      host.find(mh::Kind::lr_schedule, "cosine")->plugin->file.filename() ==
      "optimizers-schedules.so"
  );
  CHECK(host.find(mh::Kind::tokenizer, "byte")->plugin->file.filename() == "data-tokenizers.so");
  CHECK(host.registry().find(mh::Kind::corpus, "pairs") == nullptr); // opened, and not asked for
  CHECK(host.find(mh::Kind::corpus, "pairs")->plugin->file.filename() == "data-retrieval.so");
  CHECK(faults_of_children() == before);
}

TEST_CASE("a file of the name's own is opened at once, and its refusal is final") {
  Folder first, second;
  fs::copy(fixture("good"), second.path / "optimizers-fixed.so");
  fs::copy(fixture("other_id"), second.path / "optimizers-a.so");
  mh::Host host(std::vector{first.path, second.path});
  CHECK(host.find(mh::Kind::lr_schedule, "fixed")->plugin->id == "org.megahost.test");

  fs::copy(fixture("other_torch"), first.path / "optimizers-fixed.so");
  const Refusal r = refusal([&] {
    (void)mh::Host(std::vector{first.path, second.path}).find(mh::Kind::lr_schedule, "fixed");
  });
  CHECK(r.sentence.find("was built for LibTorch 2.9.0") != std::string::npos);

  mh::Host full(std::vector{second.path});
  REQUIRE(full.find(mh::Kind::lr_schedule, "org.megahost.other/fixed") != nullptr);
  CHECK(full.registry().entries().size() == 2);
}

TEST_CASE("the search path is the environment's, the user's and the installation's, never the "
          "current folder") {
  Folder folder;
  const fs::path a = folder.path / "a";
  const fs::path mine =
      folder.path / "data" / "megahost" / ("plugins-" + std::to_string(MH_PLUGIN_API));
  fs::create_directories(a);
  fs::create_directories(mine);
  const std::string before = std::getenv("MEGAHOST_PLUGIN_PATH");
  setenv("MEGAHOST_PLUGIN_PATH", ("::" + a.string() + ":/nowhere:" + a.string()).c_str(), 1);
  setenv("XDG_DATA_HOME", (folder.path / "data").c_str(), 1);
  const auto folders = mh::plugin_folders();
  setenv("MEGAHOST_PLUGIN_PATH", before.c_str(), 1);
  unsetenv("XDG_DATA_HOME");
  REQUIRE(folders.size() >= 2);
  CHECK(folders[0] == fs::canonical(a));
  CHECK(folders[1] == fs::canonical(mine));
  CHECK(std::find(folders.begin(), folders.end(), fs::current_path()) == folders.end());
}
