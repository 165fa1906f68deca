#include "core/plugin/shadows.hpp"

#include "core/plugin/open.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

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

std::string Shadow::sentence() const {
  return "the " + std::string(info(offer->kind).name) + " \"" + offer->name + "\" is " +
         plugin->plugin.id + "/" + offer->name + " (" + plugin->plugin.file.string() +
         "), which shadows the built-in " + built_in;
}

std::vector<Shadow> shadows(const std::vector<FoundPlugin>& all) {
  std::map<std::pair<Kind, std::string>, std::string> own;
  for (const FoundPlugin& found : all) {
    for (const auto& offer : found.offers) {
      if (built_in(found.plugin)) {
        own[{offer.kind, offer.name}] = found.plugin.id + "/" + offer.name;
      }
    }
  }
  std::vector<Shadow> result;
  for (const FoundPlugin& found : all) {
    for (const auto& offer : found.offers) {
      const auto known = own.find({offer.kind, offer.name});
      if (known != own.end() && !built_in(found.plugin)) {
        result.push_back({&found, &offer, known->second});
      }
    }
  }
  return result;
}

std::vector<std::string> open_shadows(Host& host) {
  std::vector<FoundPlugin> all = opened(host);
  std::set<std::string_view> prefixes; // of the files of built-ins that could have these names
  for (const FoundPlugin& found : all) {
    for (const auto& offer : found.offers) {
      if (!built_in(found.plugin)) {
        prefixes.insert(info(offer.kind).folder);
      }
    }
  }
  if (!prefixes.empty()) {
    std::error_code error;
    for (const auto& item : fs::directory_iterator(built_in_folder(), error)) {
      const std::string name = item.path().filename();
      if (name.ends_with(".so") && prefixes.contains(name.substr(0, name.find('-')))) {
        all.push_back(probe_plugin(item.path()));
      }
    }
  }
  std::vector<std::string> sentences;
  for (const Shadow& shadow : shadows(all)) {
    sentences.push_back(shadow.sentence());
  }
  return sentences;
}

} // namespace mh
