#include "core/cli/scaffold.hpp"

#include "megahost/error.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace fs = std::filesystem;

namespace {

/// A folder of its own, removed at the end.
struct Folder {
  fs::path path;

  Folder() {
    std::string name = fs::temp_directory_path() / "megahost-XXXXXX";
    path = mkdtemp(name.data());
  }

  ~Folder() { fs::remove_all(path); }
};

std::string contents(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string refusal(const mh::ScaffoldArgs& args) {
  try {
    mh::write_scaffold(args);
  } catch (const mh::Error& error) {
    CHECK(error.exit_code() == 2);
    CHECK_FALSE(error.hint().empty());
    return error.what();
  }
  return "";
}

} // namespace

TEST_CASE("every kind has a project with all its files, and no mark is left in them") {
  for (const mh::KindInfo& kind : mh::kKinds) {
    CAPTURE(kind.name);
    Folder folder;
    const fs::path project = folder.path / "a" / "b";
    const auto files = mh::write_scaffold({project, kind.kind, "my-part_2"});
    std::string names;
    for (const auto& file : files) {
      names += file.string() + " ";
      const std::string text = contents(project / file);
      CHECK_FALSE(text.empty());
      CHECK(text.find('@') == std::string::npos);
    }
    CHECK(
        names == ".gitignore README.md expect.hpp meson.build my-part_2.cpp my-part_2.lua test.cpp "
    );
    const std::string source = contents(project / "my-part_2.cpp");
    CHECK(source.find("class MyPart2 : public mh::") != std::string::npos);
    CHECK(source.find("MH_PLUGIN(\"org.example.my-part_2\"") != std::string::npos);
    CHECK(source.find("registry.add<MyPart2>(\"my-part_2\"") != std::string::npos);
    CHECK(
        contents(project / "meson.build").find(std::string(kind.folder) + "-my-part_2") !=
        std::string::npos
    );
  }
}

TEST_CASE("the folder is new or empty") {
  Folder folder;
  CHECK(refusal({folder.path, mh::Kind::corpus, "mine"}).empty());
  CHECK(
      refusal({folder.path, mh::Kind::corpus, "mine"}) ==
      folder.path.string() + " is not empty, and a new plugin would mix with what is there"
  );
  const fs::path file = folder.path / "README.md";
  const std::string before = contents(file);
  CHECK(
      refusal({file, mh::Kind::corpus, "mine"}) ==
      file.string() + " is a file, expected a folder for the new plugin"
  );
  CHECK(contents(file) == before);
}

TEST_CASE("names that make no plugin are refused, and nothing is written") {
  Folder folder;
  for (const char* name :
       {"",
        "Tiger",
        "2lion",
        "-tiger",
        "tiger-",
        "li on",
        "tiger/a",
        "li.on",
        "löwe",
        "test",
        "expect"}) {
    CAPTURE(name);
    CHECK(refusal({folder.path / "new", mh::Kind::optimizer, name})
              .starts_with("the name \"" + std::string(name) + "\" is "));
    CHECK_FALSE(fs::exists(folder.path / "new"));
  }
}
