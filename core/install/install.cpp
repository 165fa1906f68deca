#include "core/install/install.hpp"

#include "core/base/text.hpp"
#include "core/formats/plugin_file.hpp"
#include "core/install/build.hpp"
#include "core/install/sources.hpp"
#include "core/plugin/open.hpp"
#include "core/storage/file_lock.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/abi.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <cctype>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>

namespace mh {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kUnfinished = ".new-"; // begins names that the next command may remove
constexpr uint64_t kLargestLibrary = uint64_t{1} << 30;

std::string letters() {
  std::random_device device;
  std::string text;
  for (int i = 0; i < 6; ++i) {
    text += "0123456789abcdefghijklmnopqrstuv"[device() % 32];
  }
  return text;
}

fs::path record_file(const std::string& name) {
  return install_folder() / (name + ".json");
}

void remove_library(const std::string& name) {
  const fs::path file = user_plugin_folder() / name;
  if (file_system().kind(file) != FileSystem::Kind::none) {
    file_system().remove(file);
  }
}

/// Removes what no record names: what a command has left that was killed.
void sweep() {
  std::set<std::string> kept;
  for (const Installed& plugin : installed_plugins()) {
    kept.insert(plugin.sources);
  }
  for (const auto& item : fs::directory_iterator(install_folder())) {
    const std::string name = item.path().filename();
    if (item.is_directory() ? !kept.contains(name) : name.starts_with(kUnfinished)) {
      remove_tree(file_system(), item.path());
    }
  }
  for (const auto& item : fs::directory_iterator(user_plugin_folder())) {
    if (item.path().filename().string().starts_with(kUnfinished)) {
      remove_tree(file_system(), item.path());
    }
  }
}

/// The folders, for this process alone.
std::unique_ptr<FileLock> own_folders() {
  make_directories(install_folder());
  make_directories(user_plugin_folder());
  try {
    auto lock = std::make_unique<FileLock>(install_folder() / ".lock");
    sweep();
    return lock;
  } catch (const StorageError&) {
    throw;
  } catch (const Error& error) {
    if (error.exit_code() == exit_code::data) { // a record
      throw;
    }
    throw Error(
        "another megahost is installing or removing plugins in " + install_folder().string(),
        "wait for it"
    );
  }
}

/// Paths that are gone at the end, unless they have got another name.
struct Scratch {
  std::vector<fs::path> paths{install_folder() / (std::string(kUnfinished) + letters())};

  Scratch() { file_system().make_directory(paths.front()); }

  ~Scratch() {
    for (const fs::path& path : paths) {
      try {
        remove_tree(file_system(), path);
      } catch (const Error&) { // the next command does
      }
    }
  }

  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  [[nodiscard]] fs::path folder() const { return paths.front(); }
};

/// A meson project may have any name; a record's is a file's.
std::string record_name(const std::string& project) {
  std::string name;
  for (const char c : project) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' ||
                       (c == '.' && !name.empty());
    name += plain ? c : '-';
  }
  return name.substr(0, 100);
}

/// The plugin that is to be put in place.
struct PluginToPlace {
  Installed plugin;
  std::vector<fs::path> libraries;
  std::vector<FoundPlugin> found{};
};

/// The name of a library in the user's folder. Plugins of some kinds are known before a recipe names
/// them: by the start of their files' names.
std::string placed_name(const std::string& file, const FoundPlugin& found) {
  for (const Kind kind :
       {Kind::strategy,
        Kind::pipeline_schedule,
        Kind::launcher,
        Kind::recompute,
        Kind::checkpoint_format}) {
    const std::string prefix = std::string(info(kind).folder) + "-";
    const bool offered = std::any_of(found.offers.begin(), found.offers.end(), [&](const auto& o) {
      return o.kind == kind;
    });
    if (offered) {
      return file.starts_with(prefix) ? file : prefix + file;
    }
  }
  return file;
}

void open_all_of(PluginToPlace& candidate) {
  for (const fs::path& library : candidate.libraries) {
    candidate.found.push_back(probe_plugin(library));
    const FoundPlugin& found = candidate.found.back();
    if (!found.skipped.empty()) {
      throw Error(found.skipped, how_to_rebuild(library));
    }
    candidate.plugin.files.push_back(
        {placed_name(library.filename(), found), found.plugin.id, found.plugin.version}
    );
    candidate.plugin.abi_tag = found.plugin.abi_tag;
  }
}

bool same_plugin(const Installed& a, const Installed& b) {
  return std::any_of(a.files.begin(), a.files.end(), [&](const auto& one) {
    return std::any_of(b.files.begin(), b.files.end(), [&](const auto& other) {
      return one.id == other.id;
    });
  });
}

/// Refuses files and names of parts that another plugin in the user's folder has.
void check_names(const PluginToPlace& candidate, const std::optional<Installed>& before) {
  const auto& mine = candidate.plugin.files;
  const auto has = [](const std::vector<Installed::File>& files, const std::string& name) {
    return std::any_of(files.begin(), files.end(), [&](const auto& file) {
      return file.name == name;
    });
  };
  for (const auto& item : fs::directory_iterator(user_plugin_folder())) {
    const std::string name = item.path().filename();
    if (item.path().extension() != ".so" || (before && has(before->files, name))) {
      continue;
    }
    if (has(mine, name)) {
      throw Error(
          item.path().string() + " is there already, and not of this plugin",
          "megahost plugins says whose it is; remove it, or give this plugin's file another name"
      );
    }
    const FoundPlugin other = probe_plugin(item.path());
    for (const FoundPlugin& found : candidate.found) {
      for (const auto& offer : found.offers) {
        for (const auto& theirs : other.offers) {
          if (offer.kind == theirs.kind && offer.name == theirs.name) {
            throw Error(
                "the " + std::string(info(offer.kind).name) + " \"" + offer.name +
                    "\" is offered by " + other.plugin.id + " already (" + item.path().string() +
                    ")",
                "give this plugin's part another name, or remove that plugin first"
            );
          }
        }
      }
    }
  }
}

std::optional<Installed> record_of(const std::string& name) {
  for (Installed& plugin : installed_plugins()) {
    if (plugin.name == name) {
      return std::move(plugin);
    }
  }
  return std::nullopt;
}

std::optional<Installed> replaced_by(const Installed& plugin) {
  auto before = record_of(plugin.name);
  if (before && !same_plugin(*before, plugin)) {
    throw Error(
        "the name " + plugin.name + " is taken by " + before->files.front().id +
            ", installed from " + before->from,
        "megahost plugins remove " + plugin.name + ", or give this one's meson project another name"
    );
  }
  return before;
}

/// The record while files are moved: all that may be there, built for no megahost, so that a stop
/// in between is seen and mended by a rebuild.
Installed unfinished(Installed plugin, const std::optional<Installed>& before) {
  plugin.abi_tag.clear();
  if (before) {
    plugin.files.insert(plugin.files.end(), before->files.begin(), before->files.end());
  }
  return plugin;
}

/// Gives everything its name. `sources`: the folder that is kept; empty if there is none, or it is
/// there already.
void put_in_place(
    PluginToPlace& candidate,
    const std::optional<Installed>& before,
    const fs::path& sources,
    Scratch& scratch
) {
  std::vector<std::pair<fs::path, fs::path>> names;
  for (size_t i = 0; i < candidate.libraries.size(); ++i) {
    const fs::path& library = candidate.libraries[i];
    const fs::path to = user_plugin_folder() / candidate.plugin.files[i].name;
    const fs::path copy = to.parent_path() / (std::string(kUnfinished) + letters());
    scratch.paths.push_back(copy);
    write_file(copy, read_file(library, kLargestLibrary));
    names.emplace_back(copy, to);
  }
  if (!sources.empty()) {
    candidate.plugin.sources = candidate.plugin.name + "-" + letters();
    file_system().rename(sources, install_folder() / candidate.plugin.sources);
  }
  const fs::path record = record_file(candidate.plugin.name);
  replace_file(record, record_text(unfinished(candidate.plugin, before)));
  for (const auto& [copy, to] : names) {
    file_system().rename(copy, to);
  }
  file_system().sync_directory(user_plugin_folder());
  for (const Installed::File& file : before ? before->files : std::vector<Installed::File>()) {
    const bool stays = std::any_of(names.begin(), names.end(), [&](const auto& name) {
      return name.second.filename() == file.name;
    });
    if (!stays) {
      remove_library(file.name);
    }
  }
  replace_file(record, record_text(candidate.plugin));
  sweep(); // the sources that were there before
}

InstallDone finish(
    PluginToPlace candidate, const fs::path& sources, Scratch& scratch, const InstallSteps& steps
) {
  open_all_of(candidate);
  const auto before = replaced_by(candidate.plugin);
  check_names(candidate, before);
  if (candidate.plugin.checked) {
    for (const fs::path& library : candidate.libraries) {
      steps.say("checking " + library.filename().string());
      steps.check(library, candidate.plugin.sets);
    }
  }
  put_in_place(candidate, before, sources, scratch);
  InstallDone done{candidate.plugin, {}, before ? before->files.front().version : ""};
  for (const FoundPlugin& found : candidate.found) {
    for (const auto& offer : found.offers) {
      done.offers.push_back(std::string(info(offer.kind).name) + " " + offer.name);
    }
  }
  return done;
}

} // namespace

InstallDone install_plugin(const InstallArgs& args, const InstallSteps& steps) {
  const std::string given = args.given.string();
  if (!fs::exists(args.given)) {
    throw Error(
        "there is no " + given, "give a plugin's folder, an archive of one, or a .so that is built"
    );
  }
  const auto lock = own_folders();
  Scratch scratch;
  PluginToPlace candidate;
  candidate.plugin.from = fs::weakly_canonical(args.given);
  candidate.plugin.checked = args.checked;
  candidate.plugin.sets = args.sets;
  if (args.given.extension() == ".so") {
    candidate.plugin.name = record_name(args.given.stem());
    candidate.libraries = {args.given.has_parent_path() ? args.given : "." / args.given};
    return finish(std::move(candidate), "", scratch, steps);
  }
  const fs::path copy = scratch.folder() / "sources";
  if (fs::is_directory(args.given)) {
    (void)project_folder(args.given, args.given);
    copy_sources(args.given, copy);
  } else {
    steps.say("unpacking " + given);
    unpack(args.given, copy);
  }
  const fs::path sources = project_folder(copy, args.given);
  steps.say("building " + given);
  const std::string log = record_name(fs::path(candidate.plugin.from).filename()) + ".log";
  BuiltPlugin built = build_plugin(sources, scratch.folder() / "work", install_folder() / log);
  candidate.plugin.name = record_name(built.name);
  candidate.libraries = std::move(built.libraries);
  return finish(std::move(candidate), sources, scratch, steps);
}

bool is_current(const Installed& plugin) {
  const auto is_built = [](const Installed::File& file) {
    std::error_code error;
    const fs::path path = user_plugin_folder() / file.name;
    return fs::is_regular_file(path, error) && read_plugin_file(path).pin == MH_ABI_TAG;
  };
  return plugin.abi_tag == MH_ABI_TAG &&
         std::all_of(plugin.files.begin(), plugin.files.end(), is_built);
}

InstallDone rebuild_plugin(const Installed& plugin, const InstallSteps& steps) {
  if (plugin.sources.empty()) {
    throw Error(
        plugin.name + " was installed as a built file, " + plugin.from +
            ": there are no sources to build it from",
        "build it with this SDK, then megahost plugins install FILE"
    );
  }
  const auto lock = own_folders();
  Scratch scratch;
  PluginToPlace candidate{
      installed_as(plugin.name), {}}; // another process may have installed it again
  candidate.plugin.files.clear();
  steps.say("building " + plugin.name);
  candidate.libraries = build_plugin(
                            install_folder() / candidate.plugin.sources,
                            scratch.folder() / "work",
                            install_folder() / (plugin.name + ".log")
  )
                            .libraries;
  return finish(std::move(candidate), "", scratch, steps);
}

Installed remove_plugin(const std::string& name) {
  const auto lock = own_folders();
  Installed plugin = installed_as(name);
  for (const Installed::File& file : plugin.files) {
    remove_library(file.name);
  }
  file_system().remove(record_file(plugin.name));
  sweep();
  return plugin;
}

Installed installed_as(const std::string& name) {
  std::vector<std::string> known;
  for (Installed& plugin : installed_plugins()) {
    const bool named =
        std::any_of(plugin.files.begin(), plugin.files.end(), [&](const Installed::File& file) {
          return file.name == name || fs::path(file.name).stem() == name || file.id == name;
        });
    if (named || plugin.name == name) {
      return std::move(plugin);
    }
    known.push_back(plugin.name);
  }
  const auto meant = nearest(name, known);
  throw Error(
      "no plugin is installed as " + name,
      (meant ? "did you mean " + *meant + "? " : std::string()) +
          (known.empty() ? "nothing was put into the user's folder by megahost plugins install"
                         : "there are " + join(known))
  );
}

} // namespace mh
