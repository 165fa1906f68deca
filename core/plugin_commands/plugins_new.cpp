#include "core/base/folders.hpp"
#include "core/base/text.hpp"
#include "core/cli/scaffold.hpp"
#include "core/plugin_commands/commands.hpp"
#include "megahost/error.hpp"

#include <cstdio>
#include <filesystem>

namespace mh {

namespace {

Kind kind_of(const std::string& word) {
  for (const KindInfo& row : kKinds) {
    if (row.name == word) {
      return row.kind;
    }
  }
  std::vector<std::string> names;
  for (const KindInfo& row : kKinds) {
    names.emplace_back(row.name);
  }
  throw Error("megahost plugins new needs --kind", "give one of " + join(names));
}

} // namespace

int command_plugins_new(const Invocation& invocation, Host&) {
  const std::filesystem::path folder = invocation.arguments.front();
  ScaffoldArgs args{folder, kind_of(invocation.value("--kind")), invocation.value("--name")};
  if (args.name.empty()) {
    const auto whole =
        std::filesystem::absolute(folder / ".").lexically_normal(); // ends in a slash
    args.name = whole.parent_path().filename();
  }
  const auto files = write_scaffold(args);
  std::printf(
      "%s: a new %s plugin, %s\n",
      folder.c_str(),
      std::string(info(args.kind).name).c_str(),
      scaffold_names(args.kind, args.name).id.c_str()
  );
  for (const auto& file : files) {
    std::printf("  %s\n", file.c_str());
  }
  std::printf("build and test it:\n");
  if (const auto sdk = pkg_config_folder()) {
    std::printf("  export PKG_CONFIG_PATH=%s\n", sdk->c_str());
  }
  std::printf(
      "  cd %s\n"
      "  meson setup build && meson test -C build\n"
      "  megahost run %s.lua\n",
      folder.c_str(),
      args.name.c_str()
  );
  return 0;
}

} // namespace mh
