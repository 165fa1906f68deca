#include "core/language/problem.hpp"
#include "fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <set>

namespace bad_tests {

// Each recipe in bad/ is wrong; NAME.lua.err and NAME.toml.err hold what is said about it.
// MEGAHOST_UPDATE_GOLDEN=1 writes them anew: read the difference before it is kept.

TEST_CASE("bad recipes are refused with their golden message") {
  namespace fs = std::filesystem;
  fs::current_path(fs::path(std::getenv("MEGAHOST_SOURCE")) / "tests" / "recipe");
  const bool update = std::getenv("MEGAHOST_UPDATE_GOLDEN") != nullptr;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator("bad")) {
    if (entry.path().extension() != ".err") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::set<std::string> lua;
  std::set<std::string> both;
  mh::LoadOptions load = mh::test::options();
  load.roots = {"../../recipes"};
  for (const fs::path& file : files) {
    CAPTURE(file.string());
    (file.extension() == ".lua" ? lua : both).insert(file.stem().string());
    std::string message;
    int exit_code = 0;
    try {
      static_cast<void>(mh::test::resolve_file(file, load));
    } catch (const mh::Error& error) {
      message = std::string("error: ") + error.what() + "\n";
      exit_code = error.exit_code();
    }
    CHECK(exit_code == 2);
    const fs::path golden = file.string() + ".err";
    if (update) {
      std::ofstream(golden, std::ios::binary) << message;
    }
    CHECK(message == mh::test::slurp(golden));
  }
  std::erase_if(both, [&lua](const std::string& name) { return !lua.contains(name); });
  CHECK(both.size() >= 60);
}

} // namespace bad_tests
