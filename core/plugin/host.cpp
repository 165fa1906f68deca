#include "megahost/host.hpp"

#include "core/base/folders.hpp"
#include "core/base/text.hpp"
#include "core/formats/plugin_file.hpp"
#include "core/plugin/open.hpp"
#include "core/plugin/schemes.hpp"
#include "core/recipe/paths.hpp"
#include "core/storage/local_copies.hpp"
#include "megahost/plugin.hpp"
#include "megahost/recipe.hpp"

#include <dlfcn.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace mh {

namespace fs = std::filesystem;

namespace {

std::string api_folder() {
  return "plugins-" + std::to_string(MH_PLUGIN_API);
}

bool offers(const FoundPlugin& found, Kind kind, std::string_view name) {
  return std::ranges::any_of(found.offers, [&](const FoundPlugin::Offer& offer) {
    return offer.kind == kind && (offer.name == name || found.plugin.id + "/" + offer.name == name);
  });
}

} // namespace

fs::path built_in_folder() {
  Dl_info where{};
  if (dladdr(&MH_PIN, &where) == 0) {
    return {};
  }
  const fs::path library = fs::weakly_canonical(where.dli_fname).parent_path();
  const fs::path installed = library / "megahost" / api_folder();
  return fs::is_directory(installed) ? installed : library.parent_path() / "plugins";
}

std::vector<fs::path> plugin_folders() {
  std::vector<fs::path> wanted = path_list("MEGAHOST_PLUGIN_PATH");
  if (const auto own = user_folder()) {
    wanted.push_back(*own / api_folder());
  }
  wanted.push_back(built_in_folder());

  std::vector<fs::path> folders;
  for (const fs::path& folder : wanted) {
    std::error_code error;
    const fs::path real = fs::canonical(folder, error);
    if (!error && fs::is_directory(real, error) &&
        std::find(folders.begin(), folders.end(), real) == folders.end()) {
      folders.push_back(real);
    }
  }
  return folders;
}

struct Host::Open {
  fs::path real; ///< without links
  PluginInfo info;
  boost::dll::shared_library library;
  /// Its parts, until the host takes them over: a built-in plugin is opened to see whether it has a
  /// name, and its other names must not meet those of plugins that the user gave.
  std::optional<Registry> waiting;

  /// The plugin of a file, opened if it is not.
  ///
  /// Throws:  mh::Error, see plugin.hpp
  static Open& of(const fs::path& file, std::vector<std::unique_ptr<Open>>& ret_all) {
    const fs::path real = fs::weakly_canonical(file);
    for (const auto& open : ret_all) {
      if (open->real == real) {
        return *open;
      }
    }
    // The dynamic linker searches its own folders for a name without a slash.
    OpenedPlugin opened = open_plugin(file.has_parent_path() ? file : "." / file);
    ret_all.push_back(std::make_unique<Open>(Open{
        real, std::move(opened.info), std::move(opened.library), std::move(opened.registry)}));
    return *ret_all.back();
  }

  [[nodiscard]] FoundPlugin found() const {
    FoundPlugin made{info, {}, ""};
    for (const auto& entry : waiting->entries()) {
      made.offers.push_back({entry.kind, entry.name, entry.summary});
    }
    return made;
  }
};

Host::Host(std::vector<fs::path> folders)
    : folders_(std::move(folders))
    , opening_(std::make_unique<std::recursive_mutex>())
    , schemes_(std::make_unique<SchemeStorage>()) {
  check_libtorch();
}

Host::~Host() = default;
Host::Host(Host&&) noexcept = default;

Storage& Host::storage() {
  if (storage_ != nullptr) {
    return *storage_;
  }
  schemes_->ask(*this);
  return *schemes_;
}

void Host::set_storage_options(const PluginSection& section) {
  schemes_->set_options(section);
}

void Host::set_cache(const std::optional<fs::path>& folder, uint64_t bytes) {
  const std::lock_guard lock(*opening_);
  const auto place = folder ? folder : cache_folder();
  if (!place) { // which `copies` tells whoever needs one
    return;
  }
  LocalCopies::Options options{
      .folder = fs::absolute(*place), .limit = bytes, .say = [](const std::string& sentence) {
        spdlog::info("{}", sentence);
      }};
  if (copies_ == nullptr || !copies_->options().same_place(options)) {
    copies_ = std::make_shared<LocalCopies>(std::move(options));
  }
}

std::shared_ptr<LocalCopies> Host::copies() {
  const std::lock_guard lock(*opening_);
  if (copies_ == nullptr) {
    set_cache(std::nullopt, static_cast<uint64_t>(Recipe::Data().cache_limit * 1e9));
  }
  if (copies_ == nullptr) {
    throw Error(
        "there is no folder for copies of what lies in a store: neither HOME nor XDG_CACHE_HOME "
        "is set",
        "name one with data.cache"
    );
  }
  return copies_;
}

fs::path Host::on_this_machine(const std::string& path) {
  return scheme_of(path) ? copies()->copy(storage(), path, CopiedFor::corpus) : fs::path(path);
}

Value Host::on_this_machine(const Registry::Entry& entry, const Value& options) {
  const bool corpus = entry.kind == Kind::corpus;
  if (!corpus && entry.kind != Kind::tokenizer) {
    return options;
  }
  const auto copied = [&](const Value& path, const Field&) {
    if (!path.is_string() || !scheme_of(path.as_string())) {
      return path;
    }
    Value copy =
        copies()
            ->copy(storage(), path.as_string(), corpus ? CopiedFor::corpus : CopiedFor::tokenizer)
            .string();
    copy.origin = path.origin;
    return copy;
  };
  Table table = options.as_table();
  change_paths(entry.schema, copied, table);
  return table;
}

bool Host::is_open(const fs::path& file) const {
  const std::lock_guard lock(*opening_);
  const fs::path real = fs::weakly_canonical(file);
  return std::any_of(open_.begin(), open_.end(), [&](const auto& open) {
    return open->real == real && !open->waiting;
  });
}

std::vector<std::string> Host::left_out() const {
  const std::lock_guard lock(*opening_);
  return left_out_;
}

const PluginInfo& Host::load(const fs::path& file) {
  const std::lock_guard lock(*opening_);
  Open& open = Open::of(file, open_);
  if (open.waiting) {
    try {
      registry_.merge(*std::exchange(open.waiting, std::nullopt));
    } catch (const Error&) {
      std::erase_if(open_, [&](const auto& one) { return one.get() == &open; });
      throw;
    }
  }
  return open.info;
}

std::vector<fs::path> Host::files(std::string_view first_prefix) const {
  std::vector<fs::path> files;
  for (const fs::path& folder : folders_) {
    std::vector<fs::path> here;
    std::error_code error;
    for (const auto& item : fs::directory_iterator(folder, error)) {
      if (item.path().extension() == ".so" && !is_open(item.path())) {
        here.push_back(item.path());
      }
    }
    const auto rank = [&](const fs::path& file) {
      const std::string name = file.filename();
      return std::pair(!name.starts_with(first_prefix), name);
    };
    std::sort(here.begin(), here.end(), [&](const auto& a, const auto& b) {
      return rank(a) < rank(b);
    });
    files.insert(files.end(), here.begin(), here.end());
  }
  return files;
}

const Registry::Entry* Host::find(Kind kind, std::string_view name) {
  const std::lock_guard lock(*opening_);
  if (const auto* entry = registry_.find(kind, name)) {
    return entry;
  }
  const std::string prefix = std::string(info(kind).folder) + "-";
  const bool full = name.find('/') != std::string_view::npos;
  for (const fs::path& folder : folders_) {
    const fs::path file = folder / (prefix + std::string(name) + ".so");
    if (!full && fs::exists(file) && !is_open(file)) {
      load(file);
      if (const auto* entry = registry_.find(kind, name)) {
        return entry;
      }
    }
  }
  const fs::path built_in = built_in_folder();
  for (const fs::path& file : files(prefix)) {
    if (!read_plugin_file(file).has_entry) {
      continue;
    }
    FoundPlugin found;
    if (file.parent_path() == built_in && file.filename().string().starts_with(prefix)) {
      try {
        found = Open::of(file, open_).found();
      } catch (const Error&) { // `scan` tells why, as of those that a child process opens
      }
    } else {
      found = probe_plugin(file);
    }
    if (offers(found, kind, name)) {
      load(file);
      return registry_.find(kind, name);
    }
  }
  return nullptr;
}

void Host::load_named_for(Kind kind) {
  const std::lock_guard lock(*opening_);
  const std::string prefix = std::string(info(kind).folder) + "-";
  for (const fs::path& file : files(prefix)) {
    if (file.filename().string().starts_with(prefix)) {
      load(file);
    }
  }
}

std::vector<const Registry::Entry*> Host::known(Kind kind) {
  const std::lock_guard lock(*opening_);
  const std::string prefix = std::string(info(kind).folder) + "-";
  const auto offered = [&](const std::string& name) {
    return std::any_of(
        registry_.entries().begin(),
        registry_.entries().end(),
        [&](const auto& one) {
          return info(one.kind).folder == info(kind).folder && one.name == name;
        }
    );
  };
  const bool looked = std::exchange(looked_for_[static_cast<size_t>(kind)], true);
  for (const fs::path& file : looked ? std::vector<fs::path>() : files(prefix)) {
    const std::string stem = file.stem();
    if (!stem.starts_with(prefix) || offered(stem.substr(prefix.size()))) {
      continue;
    }
    try {
      load(file);
    } catch (const Error& error) { // who names what it offers is told by `find`
      left_out_.push_back(
          std::string(error.what()) + "; " + file.string() + " is left out" +
          (error.hint().empty() ? "" : " (" + error.hint() + ")")
      );
    }
  }
  std::vector<const Registry::Entry*> entries;
  for (const auto& entry : registry_.entries()) {
    const bool first = std::none_of(entries.begin(), entries.end(), [&](const auto* other) {
      return other->name == entry.name;
    });
    if (entry.kind == kind && first) {
      entries.push_back(&entry);
    }
  }
  return entries;
}

const Registry::Entry& Host::require(Kind kind, std::string_view name, const Origin& asked) {
  if (const auto* entry = find(kind, name)) {
    return *entry;
  }
  const std::vector<std::string> offered = names(kind);
  std::vector<std::string> folders;
  for (const fs::path& folder : folders_) {
    folders.push_back(folder.string());
  }
  const std::string where = asked.where();
  const auto meant = nearest(name, offered);
  throw Error(
      (where.empty() ? std::string() : where + ": ") + "no plugin offers the " +
          std::string(info(kind).name) + " \"" + std::string(name) + "\"",
      (meant ? "did you mean " + *meant + "? " : std::string()) +
          (offered.empty() ? "there is none" : "there are " + join(offered)) +
          " (searched: " + (folders.empty() ? "no folder" : join(folders)) + ")"
  );
}

std::vector<FoundPlugin> Host::scan() const {
  const std::lock_guard lock(*opening_);
  std::vector<FoundPlugin> all;
  const PluginInfo* last = nullptr;
  for (const auto& entry : registry_.entries()) {
    if (entry.plugin.get() != last) {
      last = entry.plugin.get();
      all.push_back({*last, {}, ""});
    }
    all.back().offers.push_back({entry.kind, entry.name, entry.summary});
  }
  for (const fs::path& file : files("")) {
    const auto waits = std::ranges::find_if(open_, [&](const auto& open) {
      return open->waiting && open->real == fs::weakly_canonical(file);
    });
    all.push_back(waits == open_.end() ? probe_plugin(file) : (*waits)->found());
  }
  return all;
}

std::vector<std::string> Host::names(Kind kind) const {
  const std::lock_guard lock(*opening_);
  std::vector<std::string> names = registry_.names(kind);
  for (const FoundPlugin& found : scan()) {
    for (const auto& offer : found.offers) {
      if (offer.kind == kind) {
        names.push_back(offer.name);
      }
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

} // namespace mh
