#include "core/settings/settings.hpp"

#include "core/base/text.hpp"
#include "core/language/foreign_json.hpp"
#include "core/language/foreign_yaml.hpp"
#include "core/language/read.hpp"
#include "core/settings/bridge.hpp"
#include "core/settings/torchtitan.hpp"
#include "megahost/error.hpp"

#include <sstream>

namespace mh {

namespace {

bool is_yaml(const std::string& file) {
  return file.ends_with(".yaml") || file.ends_with(".yml");
}

} // namespace

bool is_settings(const std::string& file, const std::string& text) {
  if (!is_yaml(file)) {
    return file.ends_with(".toml") || file.ends_with(".json");
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("apiVersion:") || line.starts_with("kind:")) {
      return false;
    }
  }
  return true;
}

Value read_settings(const SourcePtr& source) {
  return source->name.ends_with(".json") ? read_foreign_json(source)
         : is_yaml(source->name)         ? read_foreign_yaml(source)
                                         : read_toml(source);
}

ImportedRecipe import_settings(const Value& tree, const std::string& file) {
  if (is_torchtitan(tree)) {
    return import_torchtitan(tree);
  }
  if (is_nemo(tree)) {
    const Value bridge = bridge_of_nemo(tree);
    return import_bridge(bridge);
  }
  if (is_bridge(tree)) {
    return import_bridge(tree);
  }
  if (tree.find("per_device_train_batch_size") != nullptr ||
      tree.find("learning_rate") != nullptr) {
    throw Error(
        file + " has the TrainingArguments of transformers, and no model",
        "megahost recipe from-hf DIR --training " + shell_word(file) + " takes the model from DIR"
    );
  }
  std::vector<std::string> sections;
  for (const auto& entry : tree.as_table()) {
    sections.push_back(entry.key);
  }
  throw Error(
      file + " is no settings file that is known: it has " +
          (sections.empty() ? "nothing" : join(sections)),
      "known are torchtitan's ([model], [training], ...), Megatron-Bridge's run_config.yaml (model, "
      "train, optimizer, scheduler, ...) and NeMo's (trainer, model, ...)"
  );
}

} // namespace mh
