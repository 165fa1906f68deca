#include "core/install/build.hpp"

#include "core/base/folders.hpp"
#include "core/base/text.hpp"
#include "core/formats/json.hpp"
#include "core/formats/plugin_file.hpp"
#include "core/install/program.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <optional>

namespace mh {

namespace fs = std::filesystem;

namespace {

constexpr size_t kShownLines = 15;
constexpr uint64_t kLongestList = 16 << 20; // bytes of meson's list of targets

/// The folders in which pkg-config finds this megahost: its own is first, as another one may be
/// installed.
std::string sdk_path() {
  const auto own = pkg_config_folder();
  if (!own) {
    throw Error(
        "this megahost cannot build plugins: its megahost.pc is missing",
        "install it whole: ./megahost install PREFIX in its clone"
    );
  }
  const char* others = std::getenv("PKG_CONFIG_PATH");
  return own->string() + (others == nullptr || *others == '\0' ? "" : ":" + std::string(others));
}

const std::vector<std::string> kNinjas{"ninja", "ninja-build", "samu"};

std::optional<std::string> first_program(const std::vector<std::string>& names) {
  const auto found = std::find_if(names.begin(), names.end(), is_program);
  return found == names.end() ? std::nullopt : std::optional(*found);
}

void check_tools() {
  const char* own = std::getenv("CXX");
  std::vector<std::string> missing;
  if (!is_program("meson")) {
    missing.emplace_back("meson");
  }
  if (!first_program(kNinjas)) {
    missing.emplace_back("ninja");
  }
  if (!first_program({"pkg-config", "pkgconf"})) {
    missing.emplace_back("pkg-config");
  }
  if ((own == nullptr || *own == '\0') && !first_program({"c++", "g++", "clang++"})) {
    missing.emplace_back("a C++ compiler");
  }
  if (!missing.empty()) {
    throw Error(
        "plugins are built here, and this machine lacks " + join(missing),
        "have them installed (Debian: apt-get install g++ meson ninja-build pkg-config), or give a "
        "plugin that is built already, a .so"
    );
  }
}

struct PluginBuild {
  const fs::path& work;
  const fs::path& log;
  std::string path = sdk_path();

  void step(const std::string& what, std::vector<std::string> words) const {
    const int status =
        run_program(std::move(words), {.log = log, .variables = {{"PKG_CONFIG_PATH", path}}});
    if (status != 0) {
      throw Error(
          "the plugin does not build: " + what + " ended with status " + std::to_string(status) +
              "\n" + last_lines(log, kShownLines),
          "mend what it names; the whole log is " + log.string(),
          exit_code::other
      );
    }
  }

  /// The description of the project that meson wrote.
  [[nodiscard]] nlohmann::json read(const std::string& what) const {
    const fs::path file = work / "meson-info" / ("intro-" + what + ".json");
    return parse_json(read_file(file, kLongestList), file.string());
  }
};

/// The files of a project that are installed, as ninja calls them.
std::vector<std::string> installed_targets(const PluginBuild& build) {
  std::vector<std::string> files;
  for (const nlohmann::json& target : build.read("targets")) {
    if (json_member(target, "installed", "meson") == true) {
      for (const nlohmann::json& file : json_member(target, "filename", "meson")) {
        files.push_back(
            fs::path(file.get<std::string>()).lexically_relative(fs::canonical(build.work))
        );
      }
    }
  }
  return files;
}

} // namespace

BuiltPlugin build_plugin(const fs::path& sources, const fs::path& work, const fs::path& log) {
  check_tools();
  std::error_code ignored;
  fs::remove(log, ignored);
  const fs::path build_folder = work / "build", stage = work / "stage";
  file_system().make_directory(work);
  const PluginBuild build{build_folder, log};
  build.step("meson setup", {"meson", "setup", "-Ddebug=false", build_folder, sources});
  const std::vector<std::string> files = installed_targets(build);
  if (!files.empty()) {
    std::vector<std::string> compile{*first_program(kNinjas), "-C", build_folder};
    compile.insert(compile.end(), files.begin(), files.end());
    build.step("ninja", compile);
    build.step(
        "meson install",
        {"meson", "install", "-C", build_folder, "--no-rebuild", "--quiet", "--destdir", stage}
    );
  }
  BuiltPlugin built{build.read("projectinfo").at("descriptive_name").get<std::string>(), {}};
  if (fs::is_directory(stage)) {
    for (const auto& item : fs::recursive_directory_iterator(stage)) {
      if (item.is_regular_file() && item.path().extension() == ".so" &&
          read_plugin_file(item.path()).has_entry) {
        built.libraries.push_back(item.path());
      }
    }
  }
  std::sort(built.libraries.begin(), built.libraries.end());
  if (built.libraries.empty()) {
    throw Error(
        "the project " + built.name + " installs no plugin",
        "its meson.build needs a shared_module with install: true, and one of its sources "
        "MH_PLUGIN; megahost plugins new makes such a project"
    );
  }
  return built;
}

} // namespace mh
