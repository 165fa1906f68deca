#include "core/plugin/child.hpp"
#include "core/plugin/open.hpp"

#include <nlohmann/json.hpp>

#include <chrono>

namespace mh {

namespace {

constexpr std::chrono::seconds kPatience{20};

nlohmann::json report(const std::filesystem::path& file) {
  try {
    const OpenedPlugin opened = open_plugin(file);
    nlohmann::json offers = nlohmann::json::array();
    for (const auto& entry : opened.registry.entries()) {
      offers.push_back({static_cast<int>(entry.kind), entry.name, entry.summary});
    }
    const PluginInfo& info = opened.info;
    return {
        {"info",
         {info.id, info.version, info.license, info.summary, info.abi_tag, info.built_with}},
        {"offers", offers}};
  } catch (const std::exception& error) {
    return {{"skipped", error.what()}};
  }
}

} // namespace

FoundPlugin probe_plugin(const std::filesystem::path& file) {
  FoundPlugin found;
  found.plugin.file = file;
  const ChildResult child = in_child(
      [&] { return report(file).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); },
      kPatience
  );
  const auto json = nlohmann::json::parse(child.text, nullptr, false);
  if (child.ended.starts_with("still")) {
    found.skipped = file.string() + " was still being opened after " +
                    std::to_string(kPatience.count()) + " seconds";
  } else if (json.is_discarded()) {
    found.skipped = file.string() + " ended the process that opened it (" + child.ended + ")";
  } else if (json.contains("skipped")) {
    found.skipped = json["skipped"];
  } else {
    const auto& info = json["info"];
    found.plugin = {info[0], info[1], info[2], info[3], info[4], info[5], file};
    for (const auto& offer : json["offers"]) {
      found.offers.push_back({static_cast<Kind>(offer[0].get<int>()), offer[1], offer[2]});
    }
  }
  return found;
}

} // namespace mh
