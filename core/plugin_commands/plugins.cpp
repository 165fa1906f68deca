#include "core/base/folders.hpp"
#include "core/draw/report.hpp"
#include "core/draw/terminal.hpp"
#include "core/install/install.hpp"
#include "core/plugin/shadows.hpp"
#include "core/plugin_commands/commands.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace mh {

namespace {

using PluginRow = std::array<std::string, 5>;

std::string from(const PluginInfo& plugin) {
  if (plugin.file.empty()) {
    return "built in";
  }
  const std::string full = plugin.file.string();
  const std::string relative = std::filesystem::proximate(plugin.file).string();
  return relative.size() < full.size() ? relative : full;
}

std::vector<PluginRow> rows_of(const std::vector<FoundPlugin>& found) {
  std::vector<std::pair<Kind, PluginRow>> rows;
  for (const FoundPlugin& plugin : found) {
    for (const auto& offer : plugin.offers) {
      rows.push_back(
          {offer.kind,
           {std::string(info(offer.kind).name),
            offer.name,
            plugin.plugin.version,
            offer.summary,
            from(plugin.plugin)}}
      );
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second[1]) < std::pair(b.first, b.second[1]);
  });
  std::vector<PluginRow> result{{"KIND", "NAME", "VERSION", "WHAT IT IS", "FROM"}};
  for (auto& [kind, row] : rows) {
    result.push_back(std::move(row));
  }
  return result;
}

void print_table(const std::vector<PluginRow>& rows, const Terminal& terminal) {
  std::array<size_t, 5> widths{};
  for (const PluginRow& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const PluginRow& row : rows) {
    std::string line;
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      const std::string cell = row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
      line += &row == &rows.front() ? terminal.paint(Paint::bold, cell)
              : i == 1              ? terminal.paint(Paint::cyan, cell)
                                    : cell;
    }
    std::printf("%s%s\n", line.c_str(), terminal.paint(Paint::dim, row.back()).c_str());
  }
}

/// The records of `plugins install` in the user's folder; a record that cannot be read is named.
std::vector<Installed> records() {
  try {
    return user_folder() ? installed_plugins() : std::vector<Installed>();
  } catch (const Error& error) {
    warn(std::string(error.what()) + "; " + error.hint());
    return {};
  }
}

void print_installed(const std::vector<Installed>& all) {
  for (const Installed& plugin : all) {
    std::printf(
        "%s  %s  %s, from %s%s\n",
        &plugin == &all.front() ? "\ninstalled by megahost plugins install:\n" : "",
        plugin.name.c_str(),
        plugin.files.front().version.c_str(),
        plugin.from.c_str(),
        is_current(plugin)       ? ""
        : plugin.sources.empty() ? "; it was built for another megahost"
                                 : "; megahost plugins rebuild builds it for this megahost"
    );
  }
}

void print_json(const std::vector<FoundPlugin>& found) {
  nlohmann::ordered_json plugins = nlohmann::ordered_json::array(), skipped = plugins;
  const auto shadowing = shadows(found);
  for (const FoundPlugin& plugin : found) {
    if (!plugin.skipped.empty()) {
      skipped.push_back({{"file", plugin.plugin.file.string()}, {"reason", plugin.skipped}});
      continue;
    }
    for (const auto& offer : plugin.offers) {
      plugins.push_back(
          {{"kind", info(offer.kind).name},
           {"name", offer.name},
           {"id", plugin.plugin.id},
           {"version", plugin.plugin.version},
           {"license", plugin.plugin.license},
           {"summary", offer.summary},
           {"abi_tag", plugin.plugin.abi_tag},
           {"built_with", plugin.plugin.built_with},
           {"file", plugin.plugin.file.string()}}
      );
      for (const Shadow& shadow : shadowing) {
        if (shadow.offer == &offer) {
          plugins.back()["shadows"] = shadow.other_name();
        }
      }
    }
  }
  nlohmann::ordered_json installed = nlohmann::ordered_json::array();
  for (const Installed& plugin : records()) {
    installed.push_back(nlohmann::ordered_json::parse(record_text(plugin)));
    installed.back()["current"] = is_current(plugin);
  }
  const nlohmann::ordered_json all{
      {"plugins", plugins}, {"skipped", skipped}, {"installed", installed}};
  std::puts(all.dump(2).c_str());
}

} // namespace

int command_plugins(const Invocation& invocation, Host& host) {
  const std::vector<FoundPlugin> found = host.scan();
  if (invocation.has("--json")) {
    print_json(found);
    return 0;
  }
  const Terminal terminal = Terminal::of(STDOUT_FILENO);
  print_table(rows_of(found), terminal);
  for (const Shadow& shadow : shadows(found)) {
    std::printf(
        "%s%s\n", terminal.paint(Paint::yellow, "warning: ").c_str(), shadow.sentence().c_str()
    );
  }
  bool first = true;
  for (const FoundPlugin& plugin : found) {
    if (!plugin.skipped.empty()) {
      std::printf("%s%s\n", first ? "\nskipped:\n  " : "  ", plugin.skipped.c_str());
      first = false;
    }
  }
  print_installed(records());
  return 0;
}

} // namespace mh
