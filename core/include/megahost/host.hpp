#pragma once
/// Finds plugins, opens them and makes what they offer.
///
/// ```cpp
/// mh::Host host;             // the usual folders
/// host.load("build/moe.so"); // what the user named
/// auto sgd = host.make<mh::Optimizer>("sgd", mh::Table{{"momentum", 0.9}});
/// ```
///
/// Only what is named gets opened. A name is looked for
///   1. among the plugins opened already: `--plugin FILE`, then the recipe's `plugins`;
///   2. a short name: in each folder of the search path, in the file of that name, models-llama.so
///      for the architecture `llama` (KindInfo::folder, a dash, the name);
///   3. in each folder's other files with a plugin's entry, those that begin with KindInfo::folder
///      first. A child process opens one and says what it offers; this one opens what was meant, and
///      at once what is built in: a child process for each would be a third of the program's start.
///
/// A plugin is opened with RTLD_NOW and RTLD_LOCAL and stays open until the process ends.
///
/// Thread:  any; plugins are opened one after the other, what they offer is made at the same time

#include "megahost/export.hpp"
#include "megahost/kind.hpp"
#include "megahost/registry.hpp"
#include "megahost/storage.hpp"
#include "megahost/value.hpp"

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// The search path: the folders of MEGAHOST_PLUGIN_PATH (separated by colons), the user's
/// $XDG_DATA_HOME/megahost/plugins-API (~/.local/share/... if unset), and that of the installation
/// or build tree in which libmegahost.so lies. Only folders that exist, and never the current one.
[[nodiscard]] MH_API std::vector<std::filesystem::path> plugin_folders();

/// A file of the search path, as a child process that opened it reports.
struct FoundPlugin {
  struct Offer {
    Kind kind;
    std::string name, summary;
  };

  PluginInfo plugin; ///< only `file` is set if it was skipped
  std::vector<Offer> offers;
  std::string skipped; ///< why it cannot be opened; empty if it can
};

class LocalCopies;
class SchemeStorage;

class MH_API Host {
public:
  /// Throws:  mh::Error if the LibTorch of this process is not the one that megahost was built for
  explicit Host(std::vector<std::filesystem::path> folders = plugin_folders());
  ~Host();
  Host(Host&&) noexcept;

  /// Opens a plugin and takes over what it offers; a file that is open already is left as it is.
  ///
  /// Throws:  mh::Error with exit code 2 and one sentence for each refusal (see plugin.hpp)
  const PluginInfo& load(const std::filesystem::path& file);

  /// The entry of a name, opening the plugin that offers it (perhaps also built-in ones of the same
  /// kind); null if none does.
  ///
  /// Throws:  mh::Error if the plugin is refused, or the name is ambiguous among open plugins
  const Registry::Entry* find(Kind kind, std::string_view name);

  /// Opens every plugin of the search path whose file is named after the kind, models-NAME.so.
  ///
  /// Throws:  mh::Error if one is refused
  void load_named_for(Kind kind);

  /// All of a kind whose files are named after it, and those that are open: one of each name. A
  /// file that is refused is left out, see `left_out`.
  std::vector<const Registry::Entry*> known(Kind kind);

  /// Why files were left out, a sentence for each.
  [[nodiscard]] std::vector<std::string> left_out() const;

  /// Like `find`, and never null. `asked` is where the name was written.
  ///
  /// Throws:  mh::Error with the nearest names and the folders searched
  const Registry::Entry& require(Kind kind, std::string_view name, const Origin& asked = {});

  /// Makes one of a kind, see Registry::make.
  template <class Base>
  [[nodiscard]] std::unique_ptr<Base> make(
      std::string_view name, const Value& options = Table(), const typename Base::Args& args = {}
  ) {
    const Registry::Entry& entry = require(Base::kKind, name);
    return Registry::make<Base>(entry, on_this_machine(entry, options), args);
  }

  /// Makes what a section of a resolved recipe names: its options are complete.
  template <class Base>
  [[nodiscard]] std::unique_ptr<Base>
  make(const PluginSection& section, const typename Base::Args& args = {}) {
    const Registry::Entry& entry = require(Base::kKind, section.use);
    return Registry::make_complete<Base>(entry, on_this_machine(entry, section.options), args);
  }

  /// Each registered plugin, then each library of the search path, opened in a child process.
  [[nodiscard]] std::vector<FoundPlugin> scan() const;

  /// Every name of a kind that `find` would find.
  [[nodiscard]] std::vector<std::string> names(Kind kind) const;

  /// Thread:  while no other opens plugins
  [[nodiscard]] Registry& registry() { return registry_; }

  [[nodiscard]] const std::vector<std::filesystem::path>& folders() const { return folders_; }

  /// Whether this host has opened a file.
  [[nodiscard]] bool is_open(const std::filesystem::path& file) const;

  /// The storage of checkpoints and weights: that of the plugin that a path's scheme names; this
  /// machine's files for a path without a scheme (storage.hpp). It lives as long as the host.
  [[nodiscard]] Storage& storage();

  /// Another for all paths. `storage` outlives the host.
  void set_storage(Storage& storage) { storage_ = &storage; }

  /// Options for paths of the scheme `section.use`, complete as in a resolved recipe.
  void set_storage_options(const PluginSection& section);

  /// The folder that files which corpora and tokenizers read of a store are copied to, from now on;
  /// the user's own folder if absent. A file that lies there already, unchanged, is not fetched
  /// again; the files that were used longest ago are removed if all would be larger than `bytes`.
  void set_cache(const std::optional<std::filesystem::path>& folder, uint64_t bytes);

  /// Where a corpus, a file of documents or a folder of them lies on this machine: of a path in a
  /// store, its copy.
  ///
  /// Throws:  mh::Error (exit code 5) for what cannot be fetched
  [[nodiscard]] std::filesystem::path on_this_machine(const std::string& path);

private:
  struct Open;
  /// The options of a corpus or a tokenizer, those that are paths in a store replaced by copies.
  ///
  /// Throws:  mh::Error (exit code 5) for what cannot be fetched
  [[nodiscard]] Value on_this_machine(const Registry::Entry& entry, const Value& options);
  [[nodiscard]] std::shared_ptr<LocalCopies> copies();
  [[nodiscard]] std::vector<std::filesystem::path> files(std::string_view first_prefix) const;

  std::vector<std::filesystem::path> folders_;
  std::unique_ptr<std::recursive_mutex> opening_; ///< guards what follows
  std::vector<std::unique_ptr<Open>> open_;
  std::array<bool, kKinds.size()> looked_for_{}; ///< kinds whose files `known` has opened
  std::vector<std::string> left_out_;
  Registry registry_;
  Storage* storage_ = nullptr;
  std::unique_ptr<SchemeStorage> schemes_;
  std::shared_ptr<LocalCopies> copies_;
};

} // namespace mh
