#include "core/base/text.hpp"
#include "core/options/read.hpp"
#include "core/recipe/load.hpp"
#include "core/recipe/paths.hpp"
#include "megahost/error.hpp"

namespace mh {

void give_storage_options(const Invocation& invocation, Host& host) {
  if (!invocation.has("--set")) {
    return;
  }
  Value given = Table();
  for (const std::string& text : invocation.all("--set")) {
    const Layer layer = set_layer(text);
    const Value* section = layer.tree.find("storage");
    if (section == nullptr || !section->is_table()) {
      throw Error(
          "--set " + text + " sets no option of a storage", "write --set storage.KEY=VALUE"
      );
    }
    given = merge(given, layer.tree);
  }
  Table options = given.find("storage")->as_table();
  const Value* named = options.find("use");
  const auto scheme =
      invocation.arguments.empty() ? std::nullopt : scheme_of(invocation.arguments.front());
  const std::string use = named != nullptr && named->is_string() ? named->as_string()
                          : scheme                               ? std::string(*scheme)
                                                                 : "";
  if (use.empty()) {
    throw Error(
        "--set storage.KEY is given, and it is not said of which storage",
        "give a path NAME://..., or --set storage.use=NAME"
    );
  }
  options.erase("use");
  const Registry::Entry& entry = host.require(Kind::storage, use);
  Table complete = Registry::checked(entry, options).as_table();
  make_paths_absolute(entry.schema, complete);
  host.set_storage_options({use, std::move(complete)});
}

} // namespace mh
