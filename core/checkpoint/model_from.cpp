#include "core/checkpoint/model_from.hpp"

#include "core/base/text.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/language/problem.hpp"
#include "core/recipe/changes.hpp"
#include "core/recipe/paths.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"

#include <algorithm>

namespace mh {

namespace {

namespace fs = std::filesystem;

std::vector<const Registry::Entry*> with_model_type(Host& host, const std::string& type) {
  std::vector<const Registry::Entry*> found;
  for (const Registry::Entry& entry : host.registry().entries()) {
    if (entry.kind == Kind::architecture && entry.hugging_face != nullptr &&
        entry.hugging_face->find(type) != nullptr) {
      found.push_back(&entry);
    }
  }
  return found;
}

const Registry::Entry& architecture_of(const Value& config, Host& host) {
  const std::string& type = hf_model_type(config);
  auto found = with_model_type(host, type);
  if (found.empty()) {
    host.load_named_for(Kind::architecture);
    found = with_model_type(host, type);
  }
  const Value& at = *config.find("model_type");
  if (found.empty()) {
    std::vector<std::string> known;
    for (const Registry::Entry& entry : host.registry().entries()) {
      if (entry.kind == Kind::architecture && entry.hugging_face != nullptr) {
        for (const HfModel& model : entry.hugging_face->models) {
          known.push_back(model.model_type);
        }
      }
    }
    throw Error(
        at.origin.where() + ": model_type is " + to_text(at) + ", which no architecture has",
        "there are " + join(known) + "; a plugin may bring others (megahost/hugging_face.hpp)",
        exit_code::data
    );
  }
  if (found.size() > 1) {
    std::vector<std::string> names;
    for (const Registry::Entry* entry : found) {
      names.push_back(entry->full_name());
    }
    throw Error(
        at.origin.where() + ": model_type is " + to_text(at) +
            ", which several architectures have: " + join(names),
        "say which in model.use"
    );
  }
  return *found.front();
}

constexpr const char* kLayer = "model.from";

/// Layers that a person wrote, or that such a layer names.
bool written(const Layer& layer) {
  return layer.name == "recipe" || layer.name == "--set" || layer.name == "--layouts" ||
         layer.name == kLayer || layer.name.starts_with("extends ") ||
         layer.name.starts_with("preset ");
}

/// Refuses what the recipe says otherwise. A recipe that is wrong in itself is refused later.
void require_same(const Loaded& loaded, const ModelOfFolder& from) {
  const auto changed_by_program = [](const Layer& layer) {
    return !written(layer) && layer.tree.find("model") != nullptr;
  };
  if (std::any_of(loaded.layers.begin(), loaded.layers.end(), changed_by_program)) {
    return; // --scale, or a check's small sizes
  }
  const Value& model = *loaded.merged.find("model");
  Value own = model;
  for (const Field& field : core_schema("model").fields) {
    own.as_table().erase(field.name);
  }
  std::vector<Problem> problems;
  Value complete_model = complete(from.entry->schema, own, "model", problems);
  if (!problems.empty()) {
    return;
  }
  if (const Value* length = model.find("seq_length")) {
    complete_model.as_table().set("seq_length", *length);
  }
  for (const HfDifference& one : hf_differences(
           from.reading, complete_model.as_table(), *from.entry->hugging_face, from.entry->schema
       )) {
    problems.push_back(
        {one.origin,
         "model." + one.field,
         one.message,
         "",
         "model.from = \"" + fs::path(from.reading.file).parent_path().string() +
             "\" says it: leave model." + one.field + " out"}
    );
  }
  throw_problems(std::move(problems));
}

/// The folder that `model.from` means; a short name where it is below the working directory.
fs::path folder_of(const Value& from) {
  const fs::path folder = absolute_path(from).as_string();
  const fs::path below = folder.lexically_proximate(fs::current_path());
  return *below.begin() == ".." ? folder : below;
}

/// The configuration of a folder, in the words of a format or, before there are weights, in its own
/// file.
Value config_in(const fs::path& folder, const std::optional<std::string>& text) {
  return text ? read_hf_config(folder / "config.json", *text) : read_hf_config(folder);
}

ModelOfFolder model_of(const Value& config, const std::string& use, Host& host) {
  const Registry::Entry& entry =
      use.empty() ? architecture_of(config, host) : host.require(Kind::architecture, use);
  if (entry.hugging_face == nullptr) {
    throw Error(
        "the architecture " + entry.name + " does not say what a config.json means",
        "its plugin gives it a hugging_face_config() (megahost/hugging_face.hpp)",
        exit_code::data
    );
  }
  return {&entry, read_hf_fields(config, *entry.hugging_face, entry.schema, entry.name)};
}

} // namespace

ModelOfFolder model_of_folder(const fs::path& folder, const std::string& use, Host& host) {
  return model_of(config_in(folder, config_of(folder, host)), use, host);
}

void lay_on_model_from(Loaded& loaded, Host& host) {
  const Value* folder = loaded.merged.find_path("model.from");
  if (folder == nullptr) {
    return;
  }
  if (!folder->is_string()) {
    throw_problems(
        {{folder->origin,
          "model.from",
          "model.from is " + to_text(*folder) + ", expected a folder's name",
          "",
          ""}}
    );
  }
  const Value* use = loaded.merged.find_path("model.use");
  const ModelOfFolder from = model_of_folder(
      folder_of(*folder), use != nullptr && use->is_string() ? use->as_string() : "", host
  );
  if (const std::string sentence = hf_unknown_keys(from.reading); !sentence.empty()) {
    loaded.notes.push_back(sentence);
  }
  Table model = from.reading.fields;
  model.set("use", use != nullptr ? *use : Value(from.entry->name));
  const Layer layer{kLayer, Table{{"model", model}}};
  loaded.merged = merge(layer.tree, loaded.merged);
  loaded.layers.insert(loaded.layers.begin(), layer);
  require_same(loaded, from);
}

FolderWarnings require_model_of_folder(
    const fs::path& folder,
    const std::optional<std::string>& config,
    const Recipe& recipe,
    int64_t vocab,
    const std::vector<std::string>& allowed,
    Host& host
) {
  const ModelOfFolder from = model_of(config_in(folder, config), recipe.model.use, host);
  Table options = recipe.model.options.as_table();
  if (options.find("vocab") == nullptr) {
    options.set("vocab", vocab);
  }
  const Value* length = recipe.tree.find_path("model.seq_length");
  options.set("seq_length", length != nullptr ? *length : Value(recipe.model.seq_length));
  std::string refused, meant, keys;
  for (const HfDifference& one :
       hf_differences(from.reading, options, *from.entry->hugging_face, from.entry->schema)) {
    const std::string where = one.origin.where();
    const std::string key = "model." + one.field;
    const bool may = is_allowed(allowed, key);
    (may ? meant : refused) += "\n  " + one.message + (where.empty() ? "" : "   (" + where + ")");
    keys += may ? "" : " --allow-change " + key;
  }
  const std::string said = "the recipe's model is not that of " + from.reading.file + ":";
  if (!refused.empty()) {
    throw Error(
        said + refused,
        "leave these fields out and write model = { from = \"" + folder.string() +
            "\" }; to mean it, where the tensors fit, add" + keys,
        exit_code::data
    );
  }
  return {
      .unknown = hf_unknown_keys(from.reading),
      .longer = hf_beyond_length(from.reading, options.find("seq_length")->as_integer()),
      .allowed = meant.empty() ? "" : said + meant};
}

} // namespace mh
