/// Commands on plugins.

#include "core/cli/tables/tables.hpp"
#include "megahost/kind.hpp"

namespace mh {

namespace {

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const KindInfo& kind : kKinds) {
    names.emplace_back(kind.name);
  }
  return names;
}

} // namespace

std::vector<Command> plugin_commands() {
  return {
      {
          "plugins",
          "Plugins",
          "lists the plugins found: kind, name, version, where from",
          "Each file is opened in a process of its own; what cannot be opened is listed with the "
          "reason. Below stands what `plugins install` has installed, and where it came from. "
          "`plugins list` is the same.",
          {},
          {kPlugin, kJson},
          {{"megahost plugins", ""}},
      },
      {
          "plugins show",
          "Plugins",
          "every field that a plugin accepts: type, default, range, unit",
          "",
          {{"NAME", "name, such as adamw or org.megahost.adamw/adamw"}},
          {kPlugin, kJson},
          {{"megahost plugins show llama", ""}},
      },
      {
          "plugins check",
          "Plugins",
          "tests a plugin: some forty named tests, each in a process of its own",
          "For authors, before anybody else trains with it. Tests that do not suit what it offers "
          "are left out. Exit status: 0 all passed, 1 some failed, 2 there was nothing to test.",
          {{"FILE", "the .so file that the plugin's build made"}},
          {
              {"--include", "NAMES", "runs these tests only: a,b", true},
              {"--set",
               "KEY=VALUE",
               "an option that the plugin requires, as in --set data.paths='[\"book.txt\"]'",
               true},
              {"--in-process", "", "no processes of their own, for debuggers"},
              kPlugin,
              kJson,
          },
          {{"megahost plugins check build/optimizers-tiger.so", ""},
           {"gdb --args megahost plugins check build/optimizers-tiger.so --in-process --include "
            "options-fuzz",
            ""}},
      },
      {
          "plugins install",
          "Plugins",
          "builds and installs a plugin for you: a folder or an archive of its sources, or a .so",
          "The sources are copied, built with this machine's compiler (meson, ninja) for this "
          "megahost, tested by `plugins check`, and then put whole into your own folder, where "
          "recipes find the plugin by its name. They are kept, so that `plugins rebuild` can build "
          "it again after an upgrade. Building runs what the project's meson.build says: install "
          "what you trust. An archive holds files and folders, no links, at most 64 MiB.",
          {{"SOURCE",
            "a plugin's folder, its .tar.gz, .tar.xz, .tar.zst or .zip, or a .so that is built"}},
          {
              {"--no-check", "", "installs it without the tests of `plugins check`"},
              {"--set",
               "KEY=VALUE",
               "an option that its tests require, as for `plugins check`",
               true},
          },
          {{"megahost plugins install tiger", ""},
           {"megahost plugins install tiger-1.2.0.tar.gz --no-check", ""}},
      },
      {
          "plugins rebuild",
          "Plugins",
          "builds installed plugins again that were built for another LibTorch or megahost",
          "After an upgrade. From the sources that `plugins install` has kept, with the same tests; "
          "where that fails, what was there stays. Two versions of megahost with one number of "
          "their SDK share a folder of plugins: the last to build has it.",
          {{"[NAME]", "one plugin, also if it is built for this megahost"}},
          {},
          {{"megahost plugins rebuild", ""}},
      },
      {
          "plugins remove",
          "Plugins",
          "removes a plugin that was installed, and its sources",
          "",
          {{"NAME", "its name in the list of `megahost plugins`, its file or its id"}},
          {},
          {{"megahost plugins remove tiger", ""}},
      },
      {
          "plugins new",
          "Plugins",
          "writes a new plugin of your own: sources, test, recipe, build file",
          "A meson project that builds outside of megahost's tree, through pkg-config, and works "
          "as it is: change it from there. docs/your_model.md goes through it with a model.",
          {{"DIR", "folder of the project; made if it is not there, else empty"}},
          {
              {"--kind", "KIND", "what the plugin offers", false, kind_names()},
              {"--name", "NAME", "as recipes will say it; the folder's name if absent"},
          },
          {{"megahost plugins new tiger --kind optimizer", ""},
           {"megahost plugins new src/mixer --kind architecture --name mixer", ""}},
      },
  };
}

} // namespace mh
