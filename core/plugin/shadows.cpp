#include "core/plugin/shadows.hpp"

#include "core/plugin/open.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <system_error>

namespace mh {

namespace fs = std::filesystem;

namespace {

bool built_in(const PluginInfo& plugin) {
  std::error_code error;
  return plugin.file.empty() || fs::weakly_canonical(plugin.file).parent_path() ==
                                    fs::weakly_canonical(built_in_folder(), error);
}

/// Each open plugin with its offers.
std::vector<FoundPlugin> opened(Host& host) {
  std::vector<FoundPlugin> all;
  const PluginInfo* last = nullptr;
  for (const auto& entry : host.registry().entries()) {
    if (entry.plugin.get() != last) {
      last = entry.plugin.get();
      all.push_back({*last, {}, ""});
    }
    all.back().offers.push_back({entry.kind, entry.name, entry.summary});
  }
  return all;
}

} // namespace

std::string Shadow::other_name() const {
  return other->plugin.id + "/" + offer->name;
}

std::string Shadow::sentence() const {
  const std::string name = other_name();
  return "the " + std::string(info(offer->kind).name) + " \"" + offer->name + "\" is " +
         plugin->plugin.id + "/" + offer->name + " (" + plugin->plugin.file.string() +
         "), which shadows " +
         (built_in(other->plugin) ? "the built-in " + name
                                  : name + " (" + other->plugin.file.string() + ")");
}

namespace {

/// The offers of a plugin under the names of another.
std::vector<Shadow> shadows_of(const FoundPlugin& found, const FoundPlugin& other) {
  std::vector<Shadow> result;
  for (const auto& offer : found.offers) {
    for (const auto& theirs : other.offers) {
      if (theirs.kind == offer.kind && theirs.name == offer.name) {
        result.push_back({&found, &offer, &other});
      }
    }
  }
  return result;
}

} // namespace

std::vector<Shadow> shadows(const std::vector<FoundPlugin>& all) {
  std::vector<Shadow> result;
  for (const FoundPlugin& found : all) {
    for (const FoundPlugin& other : all) {
      if (!built_in(found.plugin) && built_in(other.plugin)) {
        const auto some = shadows_of(found, other);
        result.insert(result.end(), some.begin(), some.end());
      }
    }
  }
  return result;
}

std::vector<std::string> open_shadows(Host& host) {
  std::vector<FoundPlugin> open = opened(host);
  std::erase_if(open, [](const FoundPlugin& found) { return built_in(found.plugin); });
  std::set<std::string_view> prefixes; // how files begin that could have these names
  for (const FoundPlugin& found : open) {
    for (const auto& offer : found.offers) {
      prefixes.insert(info(offer.kind).folder);
    }
  }
  std::vector<std::string> sentences;
  for (const fs::path& folder : prefixes.empty() ? std::vector<fs::path>() : host.folders()) {
    std::error_code error;
    for (const auto& item : fs::directory_iterator(folder, error)) {
      const std::string name = item.path().filename();
      if (!name.ends_with(".so") || !prefixes.contains(name.substr(0, name.find('-'))) ||
          host.is_open(item.path())) {
        continue;
      }
      const FoundPlugin other = probe_plugin(item.path());
      for (const FoundPlugin& found : open) {
        for (const Shadow& shadow : shadows_of(found, other)) {
          sentences.push_back(shadow.sentence());
        }
      }
    }
  }
  std::sort(sentences.begin(), sentences.end());
  return sentences;
}

} // namespace mh
