// Every key that an argument of Megatron-LM becomes is a field of the core or of a plugin.

#include "core/megatron/arguments.hpp"
#include "core/schema/sections.hpp"
#include "megahost/host.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

TEST_CASE("what arguments become is there") {
  mh::Host host;
  for (const mh::FoundPlugin& found : host.scan()) {
    if (found.skipped.empty()) {
      host.load(found.plugin.file);
    }
  }
  const auto& entries = host.registry().entries();
  for (const mh::MegatronArgument& argument : mh::megatron_arguments()) {
    const size_t dot = argument.key.find('.');
    if (dot == std::string_view::npos) {
      continue;
    }
    CAPTURE(argument.key);
    const std::string section(argument.key.substr(0, dot)), field(argument.key.substr(dot + 1));
    const mh::PluginSectionInfo* info = mh::plugin_section(section);
    const bool plugins =
        info != nullptr && std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
          return entry.kind == info->kind && entry.schema.find(field) != nullptr;
        });
    const mh::Schema shared = mh::shared_schema(section, host.known(mh::Kind::strategy));
    CHECK((plugins || shared.find(field) != nullptr));
  }
}
