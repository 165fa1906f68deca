#include "core/base/text.hpp"
#include "core/checkpoint/model_from.hpp"
#include "core/draw/report.hpp"
#include "core/formats/json.hpp"
#include "core/recipe_commands/commands.hpp"
#include "core/settings/settings.hpp"
#include "core/settings/training_arguments.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"
#include "megahost/tokenizer.hpp"

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

/// The section of BERT's tokenizer over a folder's vocab.txt, with what tokenizer_config.json says of
/// it; without that file texts are lower-cased, as transformers does it. Empty for one that strips
/// accents and keeps capitals, or the other way round.
Table word_pieces(const fs::path& folder) {
  const fs::path about = folder / "tokenizer_config.json";
  std::error_code ignored;
  const nlohmann::json json = fs::is_regular_file(about, ignored)
                                  ? parse_json(read_file(about, uint64_t{16} << 20), about.string())
                                  : nlohmann::json::object();
  const auto says = [&json](const char* key, bool otherwise) {
    const auto found = json.is_object() ? json.find(key) : json.end();
    return found != json.end() && found->is_boolean() ? found->get<bool>() : otherwise;
  };
  const bool lower = says("do_lower_case", true);
  if (says("strip_accents", lower) != lower) {
    return {};
  }
  return {
      {"use", noted("wordpiece", "the folder's")},
      {"path", noted((folder / "vocab.txt").string(), "the folder's")},
      {"lower_case", noted(lower, "do_lower_case")},
      {"chinese", noted(says("tokenize_chinese_chars", true), "tokenize_chinese_chars")}};
}

/// The section of the tokenizer whose files lie in the folder; `null` if there are none that can be
/// read, and why not.
struct FolderTokenizer {
  Table section;
  std::string comment; ///< "" where it is the folder's
};

FolderTokenizer tokenizer_of(const fs::path& folder, const HfReading& reading, Host& host) {
  const auto noted_path = [&](const char* name) {
    return noted((folder / name).string(), "the folder's");
  };
  const auto holds = [&](const char* name) {
    std::error_code ignored;
    return fs::is_regular_file(folder / name, ignored);
  };
  Table found;
  if (holds("tokenizer.json")) {
    found = {{"use", noted("hf", "the folder's")}, {"path", noted_path("tokenizer.json")}};
  } else if (has_gpt2_tokenizer(folder, reading.model_type)) {
    found = {
        {"use", noted("gpt2", "the folder's")},
        {"vocab", noted_path("vocab.json")},
        {"merges", noted_path("merges.txt")}};
  } else if (holds("vocab.txt")) {
    found = word_pieces(folder);
  } else {
    for (const char* name : {"spiece.model", "tokenizer.model"}) {
      if (found.size() == 0 && holds(name)) {
        found = {{"use", noted("sentencepiece", "the folder's")}, {"path", noted_path(name)}};
      }
    }
  }
  std::string why = "The folder's tokenizer is none of megahost's";
  if (found.size() > 0) {
    try {
      Table plain;
      for (const auto& field : found) {
        if (field.key != "use") {
          plain.set(field.key, field.value);
        }
      }
      (void)host.make<Tokenizer>(found.find("use")->as_string(), plain);
      return {std::move(found), ""};
    } catch (const Error& error) {
      why = std::string("The folder's tokenizer cannot be read: ") + error.what();
    }
  }
  const Value* vocab = reading.fields.find("vocab");
  return {
      {{"use", noted("null", "see above")},
       {"vocab", noted(vocab != nullptr ? *vocab : Value(int64_t{256}), "vocab_size")}},
      why + ": `null` takes and gives ids, for --ids and for corpora of ids."};
}

/// A corpus whose samples the model reads, of a text that is on every machine.
Table data_section(const ModelOfFolder& from, bool has_tokenizer) {
  struct Row {
    const char *model, *corpus;
  };

  constexpr Row kCorpora[] = {{"bert", "bert"}, {"t5", "t5"}, {"retriever", "ict"}};
  for (const auto& [model, corpus] : kCorpora) {
    if (has_tokenizer && from.entry->name == model) {
      Table section{
          {"use", noted(corpus, kYours)},
          {"paths", noted(Value::Array{Value("@torch-headers")}, kYours)}};
      if (const Value* pairs = from.reading.fields.find("pair_head");
          pairs && *pairs == Value(false)) {
        section.set("pair", noted("none", "the model has no head for pairs"));
      }
      return section;
    }
  }
  return {{"use", noted("mock", kYours)}};
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

/// Lays the sections of a Trainer's arguments in place of those that are yours to choose.
void lay_on_training(const std::string& file, ImportedRecipe& ret_imported) {
  const Value tree = read_settings(read_source(file, "TrainingArguments"));
  ImportedRecipe training = import_training_arguments(tree);
  for (const auto& section : training.tree.as_table()) {
    ret_imported.tree.as_table().set(section.key, section.value);
  }
  const auto& more = training.comments;
  ret_imported.comments.insert(ret_imported.comments.end(), more.begin(), more.end());
}

ImportedRecipe import_folder(
    const fs::path& folder, const ModelOfFolder& from, const std::string& training, Host& host
) {
  const HfReading& reading = from.reading;
  const std::string name = fs::absolute(folder / ".").lexically_normal().parent_path().filename();
  ImportedRecipe imported;
  Table& tree = imported.tree.as_table();
  tree.set("name", noted(name, "the folder's"));
  tree.set("model", model_section(from));
  FolderTokenizer tokenizer = tokenizer_of(folder, reading, host);
  const bool has_tokenizer = tokenizer.comment.empty();
  tree.set("tokenizer", std::move(tokenizer.section));
  if (!has_tokenizer) {
    imported.comments.push_back(tokenizer.comment);
  }
  tree.set("data", data_section(from, has_tokenizer));
  // In-batch negatives are the other samples of a microbatch.
  const bool compares = from.entry->name == "retriever";
  Table batch{{"global", noted(compares ? 2 : 1, kYours)}};
  if (compares) {
    batch.set("micro", noted(2, kYours));
  }
  tree.set("batch", std::move(batch));
  tree.set("optimizer", Table{{"use", noted("adamw", kYours)}, {"lr", noted(1e-5, kYours)}});
  tree.set("train", Table{{"iters", noted(100, kYours)}});
  imported.comments.emplace_back(
      training.empty()
          ? "data, batch, optimizer and train are not the folder's: put your own in their place."
          : "data are made up: put your own in their place."
  );
  if (!training.empty()) {
    lay_on_training(training, imported);
  }
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
  const std::string file = write_imported(
      invocation,
      host,
      import_folder(given, from, invocation.value("--training"), host),
      from.reading.file
  );
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
