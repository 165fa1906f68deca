#include "core/cli/scaffold.hpp"

#include "core/base/folders.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

namespace mh {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kLimit = 1 << 20; // bytes of a template at most

/// The words for a kind: its noun in a sentence, the purpose of its recipe, and the layouts under
/// which `megahost check` compares its recipe with the single-rank result.
struct KindNouns {
  std::string_view what, recipe, layouts{};
};

constexpr std::array<KindNouns, kKinds.size()> kWords{{
    {"model architecture",
     "trains it",
     "tensor=2,sequence=true; context=2; pipeline=2; data=2,zero=3"},
    {"parallel strategy",
     "trains with the plugin open; its first lines say how on several ranks",
     "@own_key@=2; @own_key@=2,data=2; @own_key@=2,@own_key@_vocab=true"},
    {"recompute policy", "trains with it"},
    {"optimizer", "trains with it"},
    {"learning-rate schedule", "trains with it"},
    {"pipeline schedule", "trains with the schedule named"},
    {"corpus", "trains on it"},
    {"tokenizer", "trains on its tokens"},
    {"launcher", "trains with the plugin open"},
    {"device", "trains on it"},
    {"checkpoint format", "trains, and saves in it"},
    {"storage", "trains, and saves there"},
}};

/// "my-model" -> "MyModel".
std::string class_name(const std::string& name) {
  std::string result;
  bool start = true;
  for (const char c : name) {
    const bool joint = c == '-' || c == '_';
    if (!joint) {
      result += start && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    }
    start = joint;
  }
  return result;
}

/// "my-model" -> "my_model".
std::string key_name(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// "my-model" -> "MY_MODEL".
std::string upper_name(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return name;
}

/// The test of a new project that compares layouts; none for kinds that have no say in them.
std::string layouts_test(const KindNouns& said) {
  return said.layouts.empty()
             ? ""
             : "test('layouts', megahost, depends: plugin, timeout: 300, workdir: "
               "meson.project_source_root(),\n  args: ['check', '@name@.lua', '--plugin', plugin, "
               "'--precision', 'float64',\n         '--layouts', '" +
                   std::string(said.layouts) + "'])\n";
}

std::string filled(std::string text, const std::map<std::string, std::string>& replaced) {
  for (const auto& [word, value] : replaced) {
    const std::string mark = "@" + word + "@";
    for (size_t at = text.find(mark); at != std::string::npos;
         at = text.find(mark, at + value.size())) {
      text.replace(at, mark.size(), value);
    }
  }
  return text;
}

void check_folder(const fs::path& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (!fs::exists(status)) {
    return;
  }
  if (!fs::is_directory(status)) {
    throw Error(
        folder.string() + " is a file, expected a folder for the new plugin", "give another"
    );
  }
  if (!fs::is_empty(folder, error)) {
    throw Error(
        folder.string() + " is not empty, and a new plugin would mix with what is there",
        "give a folder that is empty or not there yet"
    );
  }
}

/// The names of a template folder's files as the project calls them.
std::map<fs::path, fs::path> files_of(const fs::path& folder, const std::string& name) {
  static const std::map<std::string, std::string> own{
      {"plugin.cpp", ".cpp"}, {"recipe.lua", ".lua"}};
  std::map<fs::path, fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename();
    const auto renamed = own.find(file);
    files[renamed == own.end() ? file : name + renamed->second] = entry.path();
  }
  return files;
}

} // namespace

ScaffoldNames scaffold_names(Kind kind, const std::string& name) {
  const bool letters = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (name.empty() || !letters || name.front() < 'a' || name.back() == '-' || name.back() == '_') {
    throw Error(
        "the name \"" + name +
            "\" is none for a plugin: it begins with a letter a-z, and has only "
            "a-z, 0-9, and _ or - between them",
        "give --name, such as --name my-model"
    );
  }
  if (name == "test" || name == "expect") {
    throw Error(
        "the name \"" + name + "\" is that of another file of the project", "give another --name"
    );
  }
  return {std::string(info(kind).folder) + "-" + name, "org.example." + name};
}

std::vector<fs::path> write_scaffold(const ScaffoldArgs& args) {
  const ScaffoldNames names = scaffold_names(args.kind, args.name);
  check_folder(args.folder);
  const KindInfo& kind = info(args.kind);
  const KindNouns& said = kWords[static_cast<size_t>(args.kind)];
  const std::map<std::string, std::string> replaced{
      {"layouts_test", layouts_test(said)}, // has others of these in it, and comes before them
      {"name", args.name},
      {"Name", class_name(args.name)},
      {"UPPER", upper_name(args.name)},
      {"own_key", key_name(args.name)},
      {"id", names.id},
      {"file", names.file},
      {"header", std::string(kind.name) + ".hpp"},
      {"words", std::string(said.what)},
      {"recipe_words", std::string(said.recipe)},
  };
  const fs::path templates = template_folder();
  auto files = files_of(templates / "project", args.name);
  files.merge(files_of(templates / kind.name, args.name));

  make_directories(args.folder);
  std::vector<fs::path> written;
  for (const auto& [file, source] : files) {
    write_file(args.folder / file, filled(read_file(source, kLimit), replaced));
    written.push_back(file);
  }
  return written;
}

} // namespace mh
