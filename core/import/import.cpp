#include "core/import/import.hpp"

#include "core/base/text.hpp"
#include "core/import/importer.hpp"
#include "core/recipe/commands.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <memory>
#include <sstream>

namespace mh {

std::vector<std::string> parts_of(const std::string& text, char between) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, between);) {
    const size_t begin = part.find_first_not_of(' ');
    if (begin != std::string::npos) {
      parts.push_back(part.substr(begin, part.find_last_not_of(' ') - begin + 1));
    }
  }
  return parts;
}

/// A number as a recipe has it: whole where it is.
Value number_value(double number) {
  const auto whole = exact_integer(number);
  return whole ? Value(*whole) : Value(number);
}

namespace {

/// The kind of model that the program trains. One that is not listed takes the arguments of
/// pretrain_gpt.py.
///
/// Throws:  mh::Error for programs of other kinds
Trains trained_by(const std::string& program) {
  const struct {
    std::string_view file;
    Trains trains;
    const char* why; ///< it is refused
  } programs[] = {
      {"pretrain_bert.py", Trains::bert, nullptr},
      {"pretrain_t5.py", Trains::t5, nullptr},
      {"pretrain_ict.py", Trains::ict, nullptr},
      {"pretrain_mamba.py", Trains::hybrid, nullptr},
      {"pretrain_hybrid.py", Trains::hybrid, nullptr},
      {"pretrain_vlm.py", Trains::decoder, "images"},
      {"pretrain_mimo.py", Trains::decoder, "images and sounds"},
      {"pretrain_vision_classify.py", Trains::decoder, "images"},
      {"pretrain_vision_dino.py", Trains::decoder, "images"},
      {"pretrain_vision_inpaint.py", Trains::decoder, "images"},
      {"pretrain_retro.py", Trains::decoder, "retrieved texts"}};

  const std::string file = program.substr(program.rfind('/') + 1);
  for (const auto& known : programs) {
    if (file == known.file) {
      if (known.why != nullptr) {
        throw Error(
            file + " trains a model of " + known.why + ", for which there is no architecture yet",
            "pretrain_gpt.py, pretrain_mamba.py, pretrain_bert.py, pretrain_t5.py and pretrain_ict.py "
            "have equivalents"
        );
      }
      return known.trains;
    }
  }
  return Trains::decoder;
}

} // namespace

bool Importer::decodes() const {
  return trains_ == Trains::decoder || trains_ == Trains::hybrid;
}

Importer::Importer(const ShellCommand& command)
    : Importer(command, GivenArguments(command.arguments)) {}

Importer::Importer(const ShellCommand& command, GivenArguments given)
    : command_(command)
    , trains_(trained_by(command.program))
    , given_(std::move(given)) {}

ImportedRecipe Importer::run() {
  conflicts();
  required();
  for (const GivenArgument& argument : given_.all()) {
    take(argument);
  }
  for (const MegatronDefault& value : megatron_defaults()) {
    if (result_.tree.find_path(value.key) == nullptr) {
      set(std::string(value.key),
          number_value(std::stod(std::string(value.value))),
          kMegatronDefault);
    }
  }
  model();
  if (trains_ == Trains::bert) {
    bert();
  } else if (trains_ == Trains::t5) {
    t5();
  } else if (trains_ == Trains::ict) {
    retriever();
  } else {
    positions();
  }
  layout();
  pipeline();
  recompute();
  precision();
  optimizer();
  schedule();
  batch();
  evaluation();
  data();
  tokenizer();
  others();
  return std::move(result_);
}

void Importer::refuse(const std::string& message, const std::string& hint) {
  throw Error(message, hint);
}

void ImportedRecipe::set(const std::string& key, Value value, const std::string& by) {
  value.origin.source = std::make_shared<const Source>(Source{by, "", by});
  const size_t dot = key.find('.');
  Table& top = tree.as_table();
  if (dot == std::string::npos) {
    top.set(key, std::move(value));
    return;
  }
  const std::string section = key.substr(0, dot);
  if (top.find(section) == nullptr) {
    top.set(section, Table{});
  }
  top.find(section)->as_table().set(key.substr(dot + 1), std::move(value));
}

void Importer::set(const std::string& key, Value value, const std::string& by) {
  result_.set(key, std::move(value), by);
}

void Importer::set_from(const std::string& key, Value value, std::string_view argument) {
  const GivenArgument* given = given_.find(argument);
  set(key, std::move(value), given != nullptr ? given->text() : kMegatronDefault);
}

void Importer::comment(const std::string& text) {
  result_.comments.push_back(text);
}

bool Importer::is_set(const char* key) const {
  return result_.tree.find_path(key) != nullptr;
}

int64_t Importer::integer(const char* key, int64_t otherwise) const {
  const Value* value = result_.tree.find_path(key);
  return value != nullptr && value->is_integer() ? value->as_integer() : otherwise;
}

void Importer::conflicts() const {
  for (const MegatronConflict& pair : megatron_conflicts()) {
    if (given_.has(pair.one) && given_.has(pair.other)) {
      refuse(
          "--" + std::string(pair.one) + " and --" + std::string(pair.other) +
          " are both given: " + std::string(pair.why)
      );
    }
  }
}

void Importer::required() const {
  const std::pair<const char*, const char*> all[] = {
      {"num-layers", "encoder-num-layers"},
      {"hidden-size", ""},
      {"num-attention-heads", ""},
      {"seq-length", "encoder-seq-length"},
      {"micro-batch-size", "batch-size"},
      {"train-iters", "train-samples"}};
  const bool patterned = pattern() != nullptr; // which has a letter for each layer
  if (trains_ == Trains::hybrid && !patterned) {
    refuse("--hybrid-layer-pattern is missing, which says what each layer is");
  }
  for (const auto& [name, other] : all) {
    const bool known = patterned && std::string_view(name) == "num-layers";
    if (!known && !given_.has(name) && !given_.has(other)) {
      refuse(
          std::string("--") + name + " is missing, without which there is no training",
          std::string(other).empty() ? "" : std::string("or --") + other
      );
    }
  }
}

void Importer::take(const GivenArgument& argument) {
  if (argument.known == nullptr) {
    if (const MegatronArguments* group = without_equivalent(argument.name)) {
      no_equivalent(argument, group->becomes, group->reason);
      return;
    }
    std::vector<std::string> names;
    for (const MegatronArgument& known : megatron_arguments()) {
      names.emplace_back(known.name);
    }
    const auto meant = nearest(argument.name, names);
    comment(
        argument.text() + ": not known here" + (meant ? "; did you mean --" + *meant + "?" : "")
    );
    return;
  }
  const MegatronArgument& known = *argument.known;
  const std::string key(known.key);
  switch (known.becomes) {
  case Becomes::number:
    set(key, number_value(argument_number(argument, argument.values.front())), argument.text());
    break;
  case Becomes::text:
    set(key, argument.values.front(), argument.text());
    break;
  case Becomes::on:
  case Becomes::off:
    set(key, known.becomes == Becomes::on, argument.text());
    break;
  case Becomes::word:
    set(key, meaning(argument), argument.text());
    break;
  case Becomes::nothing:
  case Becomes::changes:
    no_equivalent(argument, known.becomes, known.note);
    break;
  case Becomes::settings:
  case Becomes::same:
    break;
  }
}

void Importer::no_equivalent(
    const GivenArgument& argument, Becomes becomes, std::string_view reason
) {
  comment(
      argument.text() + ": no equivalent" +
      (becomes == Becomes::changes ? ", training differs: " : ": ") + std::string(reason)
  );
}

std::string Importer::meaning(const GivenArgument& argument) {
  const std::string& word = argument.values.front();
  std::vector<std::string> known;
  for (const std::string& pair : parts_of(std::string(argument.known->words), ' ')) {
    const size_t equals = pair.find('=');
    if (pair.substr(0, equals) == word) {
      return pair.substr(equals + 1);
    }
    known.push_back(pair.substr(0, equals));
  }
  refuse("--" + argument.name + " " + word + " has no equivalent, expected " + join(known, " or "));
}

void Importer::precision() {
  if (given_.has("fp8-format")) {
    set_from("precision", "fp8", "fp8-format");
  } else {
    const char* by = given_.has("fp16") ? "fp16" : "bf16";
    set_from("precision", given_.has(by) ? by : "fp32", by);
  }
  set("device", "cuda", kMegatronDefault);
}

void Importer::others() {
  if (given_.has("check-for-spiky-loss")) {
    set("guards.spike", "stop", "--check-for-spiky-loss");
  }
  if (given_.has("wandb-exp-name")) {
    set_from("name", given_.text("wandb-exp-name"), "wandb-exp-name");
  }
  if (is_set("checkpoint.dir") && !is_set("checkpoint.interval")) {
    refuse("--save needs --save-interval: how many steps lie between two checkpoints");
  }
}

namespace {

/// Sections in the order of a printed recipe, `use` first in each.
Value in_order(const Value& tree) {
  Table ordered;
  for (const auto& entry : tree.as_table()) {
    if (!entry.value.is_table()) {
      ordered.set(entry.key, entry.value);
    }
  }
  for (const std::string& name : section_names()) {
    const Value* section = tree.find(name);
    if (section == nullptr) {
      continue;
    }
    Table fields;
    if (const Value* use = section->find("use")) {
      fields.set("use", *use);
    }
    for (const auto& entry : section->as_table()) {
      fields.set(entry.key, entry.value);
    }
    ordered.set(name, std::move(fields));
  }
  return ordered;
}

} // namespace

std::string ImportedRecipe::text(const std::string& title, RecipeFormat format) const {
  Recipe recipe;
  recipe.tree = in_order(tree);
  if (format == RecipeFormat::json) {
    return show_recipe(recipe, format, /*origins=*/false);
  }
  const std::string mark = format == RecipeFormat::lua ? "--" : "#";
  std::string text = mark + " " + title + "\n";
  for (const std::string& line : comments) {
    text += (&line == &comments.front() ? mark + "\n" : "") + mark + " " + line + "\n";
  }
  return text + "\n" + show_recipe(recipe, format, /*origins=*/true);
}

ImportedRecipe import_arguments(const ShellCommand& command) {
  return Importer(command).run();
}

} // namespace mh
