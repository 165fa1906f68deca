#include "core/plugin/installed.hpp"

#include "core/base/folders.hpp"
#include "core/base/printable.hpp"
#include "core/formats/json.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/abi.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace mh {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kLongestRecord = 1 << 20;
constexpr const char* kRebuildYourself =
    "build it again with this SDK: meson setup --wipe BUILD && meson compile -C BUILD";

/// The name of a file or folder in a folder, and no way out of it.
std::string plain_name(const nlohmann::json& json, const char* key, const std::string& where) {
  const std::string& name = json_string(json, key, where);
  if (!name.empty() && !is_file_name(name)) {
    throw Error(where + ": `" + key + "` is no plain name", "", exit_code::data);
  }
  return name;
}

const nlohmann::json&
list_of(const nlohmann::json& json, const char* key, const std::string& where) {
  const nlohmann::json& list = json_member(json, key, where);
  if (!list.is_array()) {
    throw Error(where + ": `" + key + "` is no list", "", exit_code::data);
  }
  return list;
}

Installed read_record(const fs::path& file) {
  const std::string where = file.string();
  const nlohmann::json json = parse_json(read_file(file, kLongestRecord), where);
  Installed plugin{
      .name = plain_name(json, "name", where),
      .from = json_string(json, "from", where),
      .sources = plain_name(json, "sources", where),
      .abi_tag = json_string(json, "abi_tag", where),
      .files = {},
      .checked = json_member(json, "checked", where) == true,
      .sets = {}};
  for (const nlohmann::json& item : list_of(json, "files", where)) {
    plugin.files.push_back(
        {plain_name(item, "name", where),
         json_string(item, "id", where),
         json_string(item, "version", where)}
    );
  }
  if (plugin.files.empty()) {
    throw Error(where + ": `files` is empty", "", exit_code::data);
  }
  for (const nlohmann::json& item : list_of(json, "sets", where)) {
    if (!item.is_string()) {
      throw Error(where + ": `sets` holds something that is no text", "", exit_code::data);
    }
    plugin.sets.push_back(item);
  }
  if (plugin.name != file.stem()) {
    throw Error(where + " is the record of another plugin, " + plugin.name, "", exit_code::data);
  }
  return plugin;
}

fs::path data_folder() {
  if (const auto folder = user_folder()) {
    return *folder;
  }
  throw Error(
      "there is no folder of the user's for plugins: neither HOME nor XDG_DATA_HOME is set",
      "set XDG_DATA_HOME=DIR"
  );
}

} // namespace

fs::path install_folder() {
  return data_folder() / "installed";
}

fs::path user_plugin_folder() {
  return data_folder() / ("plugins-" + std::to_string(MH_PLUGIN_API));
}

std::vector<Installed> installed_plugins() {
  std::vector<Installed> all;
  std::error_code error;
  for (const auto& item : fs::directory_iterator(install_folder(), error)) {
    if (item.path().extension() != ".json") {
      continue;
    }
    try {
      all.push_back(read_record(item.path()));
    } catch (const Error& problem) {
      throw Error(
          problem.what(),
          "remove this record of an installed plugin, then install the plugin again",
          exit_code::data
      );
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return all;
}

std::string record_text(const Installed& plugin) {
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const Installed::File& file : plugin.files) {
    files.push_back({{"name", file.name}, {"id", file.id}, {"version", file.version}});
  }
  const nlohmann::ordered_json json{
      {"name", plugin.name},
      {"from", plugin.from},
      {"sources", plugin.sources},
      {"abi_tag", plugin.abi_tag},
      {"files", files},
      {"checked", plugin.checked},
      {"sets", plugin.sets}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string how_to_rebuild(const fs::path& file) {
  std::error_code error;
  if (!user_folder() || !fs::equivalent(file.parent_path(), user_plugin_folder(), error)) {
    return kRebuildYourself;
  }
  try {
    for (const Installed& plugin : installed_plugins()) {
      for (const Installed::File& one : plugin.files) {
        if (one.name == file.filename()) {
          return plugin.sources.empty()
                     ? "build it again with this SDK, then megahost plugins install FILE"
                     : "megahost plugins rebuild " + plugin.name +
                           " builds it again, from the sources that were kept";
        }
      }
    }
  } catch (const Error&) { // a damaged record: `megahost plugins` names it
  }
  return kRebuildYourself;
}

} // namespace mh
