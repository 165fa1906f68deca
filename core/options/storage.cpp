#include "core/base/text.hpp"
#include "core/options/read.hpp"
#include "core/recipe/load.hpp"
#include "core/recipe/paths.hpp"
#include "megahost/error.hpp"

#include <algorithm>

namespace mh {

namespace {

/// The storage that a path of the command names, the first one that has a scheme.
std::string scheme_given(const Invocation& invocation) {
  std::vector<std::string> paths = invocation.arguments;
  paths.push_back(invocation.value("--output"));
  const auto found = std::ranges::find_if(paths, [](const std::string& path) {
    return scheme_of(path).has_value();
  });
  return found == paths.end() ? "" : std::string(*scheme_of(*found));
}

void set_storage(const Invocation& invocation, Table options, Host& host) {
  const Value* named = options.find("use");
  const std::string use =
      named != nullptr && named->is_string() ? named->as_string() : scheme_given(invocation);
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

/// data.cache and data.cache_limit.
void set_cache(const Table& data, Host& host) {
  Recipe::Data read;
  for (const auto& entry : data) {
    if (entry.key == "cache" && entry.value.is_string() && !scheme_of(entry.value.as_string())) {
      read.cache = entry.value.as_string();
    } else if (entry.key == "cache_limit" && entry.value.is_number() && entry.value.as_number() > 0) {
      read.cache_limit = entry.value.as_number();
    } else {
      throw Error(
          "--set data." + entry.key + " is no option of this command, or its value does not fit",
          "options of `data` are cache, a folder of this machine, and cache_limit, in GB"
      );
    }
  }
  host.set_cache(read.cache, static_cast<uint64_t>(read.cache_limit * 1e9));
}

/// Whether it is an option of a run's tokenizer, in place of what the run says.
bool is_of_tokenizer(const Invocation& invocation, const Layer& layer) {
  return invocation.command == "checkpoint export" && layer.tree.find("tokenizer") != nullptr;
}

} // namespace

void give_storage_options(const Invocation& invocation, Host& host) {
  Value given = Table();
  for (const std::string& text : invocation.all("--set")) {
    const Layer layer = set_layer(text);
    const bool is_known = std::ranges::any_of(std::array{"storage", "data"}, [&](const char* key) {
      const Value* section = layer.tree.find(key);
      return section != nullptr && section->is_table();
    });
    if (is_known) {
      given = merge(given, layer.tree);
    } else if (!invocation.has("--tokenizer") && !is_of_tokenizer(invocation, layer)) {
      throw Error(
          "--set " + text + " sets no option of a storage", "write --set storage.KEY=VALUE"
      );
    }
  }
  if (const Value* storage = given.find("storage")) {
    set_storage(invocation, storage->as_table(), host);
  }
  if (const Value* data = given.find("data")) {
    set_cache(data->as_table(), host);
  }
}

} // namespace mh
