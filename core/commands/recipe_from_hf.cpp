#include "core/base/text.hpp"
#include "core/checkpoint/model_from.hpp"
#include "core/commands/commands.hpp"
#include "core/draw/report.hpp"
#include "core/formats/json.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>

namespace mh {

namespace {

namespace fs = std::filesystem;

constexpr const char* kYours = "yours to choose";

/// The value with its source, for the comment after it.
Value noted(Value value, const std::string& from) {
  value.origin = {std::make_shared<const Source>(Source{from, "", from})};
  return value;
}

/// Whether vocab.json and merges.txt are there and cut text as GPT-2 does; others have such files
/// and cut it in another way.
bool has_gpt2_tokenizer(const fs::path& folder, const std::string& model_type) {
  std::error_code ignored;
  if (!fs::is_regular_file(folder / "vocab.json", ignored) ||
      !fs::is_regular_file(folder / "merges.txt", ignored)) {
    return false;
  }
  const fs::path about = folder / "tokenizer_config.json";
  if (!fs::is_regular_file(about, ignored)) {
    return model_type == "gpt2";
  }
  const nlohmann::json json = parse_json(read_file(about, uint64_t{16} << 20), about.string());
  return json.is_object() && json.value("tokenizer_class", nlohmann::json()).is_string() &&
         json["tokenizer_class"].get<std::string>().starts_with("GPT2Tokenizer");
}

Table model_section(const ModelOfFolder& from) {
  Table model{{"use", noted(from.entry->name, "model_type")}};
  for (const auto& entry : from.reading.fields) {
    const Field* field = from.entry->schema.find(entry.key);
    const bool as_default = field != nullptr && field->default_value == entry.value;
    const auto said = from.reading.said.find(entry.key);
    const bool given = said != from.reading.said.end() && said->second.present;
    if (as_default && !given) {
      continue;
    }
    const std::string key = said == from.reading.said.end()
                                ? "a " + from.reading.model_type
                                : said->second.key + (given ? "" : ", which is absent");
    model.set(entry.key, noted(entry.value, key));
  }
  return model;
}

ImportedRecipe import_folder(const fs::path& folder, const ModelOfFolder& from) {
  const HfReading& reading = from.reading;
  const std::string name = fs::absolute(folder / ".").lexically_normal().parent_path().filename();
  ImportedRecipe imported;
  Table& tree = imported.tree.as_table();
  tree.set("name", noted(name, "the folder's"));
  tree.set("model", model_section(from));
  const Value* vocab = reading.fields.find("vocab");
  if (has_gpt2_tokenizer(folder, reading.model_type)) {
    tree.set(
        "tokenizer",
        Table{
            {"use", noted("gpt2", "the folder's")},
            {"vocab", noted((folder / "vocab.json").string(), "the folder's")},
            {"merges", noted((folder / "merges.txt").string(), "the folder's")}}
    );
  } else {
    tree.set(
        "tokenizer",
        Table{
            {"use", noted("null", "see above")},
            {"vocab", noted(vocab != nullptr ? *vocab : Value(int64_t{256}), "vocab_size")}}
    );
    imported.comments.emplace_back("The folder's tokenizer is none of megahost's: `null` takes and "
                                   "gives ids, for --ids and for corpora of ids.");
  }
  tree.set("data", Table{{"use", noted("mock", kYours)}});
  tree.set("batch", Table{{"global", noted(1, kYours)}});
  tree.set("optimizer", Table{{"use", noted("adamw", kYours)}, {"lr", noted(1e-5, kYours)}});
  tree.set("train", Table{{"iters", noted(100, kYours)}});
  imported.comments.emplace_back(
      "data, batch, optimizer and train are not the folder's: put your own in their place."
  );
  imported.comments.emplace_back(
      "seq_length may be smaller unless positions are learned; it sets memory and time of a step."
  );
  if (const std::string unknown = hf_unknown_keys(reading); !unknown.empty()) {
    imported.comments.push_back(unknown);
  }
  return imported;
}

} // namespace

int command_recipe_from_hf(const Invocation& invocation, Host& host) {
  const fs::path argument = invocation.arguments.front();
  const std::string given = // config.json stands for its folder
      argument.filename() == "config.json"
          ? (argument.parent_path() / ".").lexically_normal().string()
          : argument.string();
  const ModelOfFolder from = model_of_folder(given, "", host);
  const std::string file =
      write_imported(invocation, host, import_folder(given, from), from.reading.file);
  if (file.empty()) {
    return 0;
  }
  const std::string recipe = shell_word(file), weights = shell_word(given);
  std::printf(
      "%s is a recipe; megahost eval %s --weights %s --ids IDS.json reads ids with it, "
      "megahost run %s --weights %s trains on\n",
      file.c_str(),
      recipe.c_str(),
      weights.c_str(),
      recipe.c_str(),
      weights.c_str()
  );
  if (const std::string unknown = hf_unknown_keys(from.reading); !unknown.empty()) {
    std::fflush(stdout);
    warn(unknown);
  }
  return 0;
}

} // namespace mh
