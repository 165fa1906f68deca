#include "core/plugin/catalogue.hpp"
#include "core/recipe_commands/commands.hpp"
#include "core/storage/file_system.hpp"

#include <cstdio>
#include <filesystem>
#include <system_error>

namespace mh {

namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& file, const std::string& text) {
  if (file.has_parent_path()) {
    make_directories(file.parent_path());
  }
  replace_file(file, text);
  std::fprintf(stderr, "wrote %s\n", file.c_str());
}

/// Settings from elsewhere stay as they are.
void write_settings(const fs::path& file, const std::string& text) {
  if (file_system().kind(file) == FileSystem::Kind::none) {
    write_text(file, text);
  } else if (read_file(file, uint64_t{1} << 20) != text) {
    std::fprintf(
        stderr,
        "%s is there already and stays; it needs these settings:\n%s",
        file.c_str(),
        text.c_str()
    );
  }
}

} // namespace

int command_recipe_schema(const Invocation& invocation, Host& host) {
  const std::string text = json_schema(recipe_catalogue(host));
  if (invocation.has("-o")) {
    write_text(invocation.value("-o"), text);
  } else {
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  return 0;
}

int command_recipe_stubs(const Invocation& invocation, Host& host) {
  const fs::path folder = invocation.value("-o", ".");
  const std::string stubs = "megahost.gen.lua";
  write_text(folder / stubs, lua_stubs(recipe_catalogue(host)));
  write_settings(folder / ".luarc.json", luarc(stubs));
  return 0;
}

} // namespace mh
