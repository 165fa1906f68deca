#pragma once
/// Schemas with the fields of the real plugins, so that recipes are tested without loading any.

#include "core/editor/editor.hpp"
#include "core/recipe/resolve.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"

#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace mh::test {

[[nodiscard]] Schema decoder_schema();

/// The plugins that tests know.
class Plugins {
public:
  Plugins();

  Registry::Entry& add(Kind kind, const std::string& name, Schema schema);

  /// With what the plugin itself declares of its keys.
  template <class Keys>
  void declare(Kind kind, const std::string& name) {
    add(kind, name, fields_of<Keys>().schema());
    Registry::declare<Keys>(schemas_.back());
  }

  [[nodiscard]] PluginLookup lookup() const;
  [[nodiscard]] std::vector<const Registry::Entry*> of(Kind kind) const;

  /// A section with the fields of the strategies.
  [[nodiscard]] Schema section(std::string_view name) const;

  /// The plugins and the project's presets, for editors. Lives as long as this.
  [[nodiscard]] RecipeCatalogue catalogue() const;

private:
  std::shared_ptr<const PluginInfo> plugin_ =
      std::make_shared<const PluginInfo>(PluginInfo{.id = "org.megahost.test"});
  std::deque<Registry::Entry> schemas_;
};

/// The project's own recipes.
[[nodiscard]] std::filesystem::path recipes();

[[nodiscard]] LoadOptions options();

[[nodiscard]] Resolved resolve_file(
    const std::filesystem::path& file, const LoadOptions& load = options(), const Facts& facts = {}
);

/// A folder that is gone afterwards.
class Folder {
public:
  Folder();
  ~Folder();

  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::filesystem::path write(const std::string& name, const std::string& text) const;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

private:
  std::filesystem::path path_;
};

[[nodiscard]] std::string slurp(const std::filesystem::path& file);

/// The message of the mh::Error that `run` throws; empty if it throws none.
std::string refusal(const std::function<void()>& run);

} // namespace mh::test
