#include "core/recipe/tried.hpp"

#include "core/base/plugin_fault.hpp"
#include "core/language/problem.hpp"
#include "megahost/error.hpp"

namespace mh {

std::string
tried_fault(const Registry::Entry& entry, const std::vector<Table>& tried, const Schema& others) {
  const std::string section(info(entry.kind).section);
  for (const Table& settings : tried) {
    for (const auto& setting : settings) {
      const Field* own = entry.schema.find(setting.key);
      const Field* field = own != nullptr ? own : others.find(setting.key);
      if (field == nullptr) {
        return "tries " + section + "." + setting.key + ", a key that it does not declare";
      }
      Schema only;
      only.fields = {*field};
      std::vector<Problem> problems;
      static_cast<void>(complete(only, Table{{setting.key, setting.value}}, section, problems));
      if (!problems.empty()) {
        return "tries a value that the key does not take: " + problems.front().message;
      }
    }
  }
  return "";
}

void require_tried(
    const Registry::Entry& entry,
    const char* call,
    const std::vector<Table>& tried,
    const Schema& others
) {
  const std::string fault = tried_fault(entry, tried, others);
  if (!fault.empty()) {
    throw Error(
        "`" + std::string(call) + "` of the " + std::string(info(entry.kind).name) + " " +
            entry.name + " of plugin " + entry.plugin->id + " " + fault,
        kMendPlugin
    );
  }
}

} // namespace mh
