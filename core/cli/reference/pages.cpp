#include "core/base/text.hpp"
#include "core/cli/command.hpp"
#include "core/cli/reference/reference.hpp"
#include "core/cli/topics.hpp"
#include "core/megatron/arguments.hpp"
#include "core/schema/sections.hpp"
#include "core/storage/file_system.hpp"

#include <algorithm>
#include <sstream>

namespace mh {

namespace {

constexpr uint64_t kLargestHeader = uint64_t{1} << 20;

Page page(std::string file, std::string title, const std::string& text, std::string summary = "") {
  std::string all = std::string(kPageMark) + "\n\n# " + title + "\n\n" + text;
  while (all.ends_with("\n\n")) {
    all.pop_back();
  }
  return {std::move(file), std::move(title), std::move(all), std::move(summary)};
}

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

/// Text within a cell of a table.
std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
    text.insert(at, "\\");
  }
  return text;
}

std::string default_of(const Field& field) {
  return field.required                  ? "required"
         : field.default_value.is_null() ? ""
                                         : "`" + to_text(field.default_value) + "`";
}

/// A table of fields; `section` is that of a recipe, "" at its top level, none elsewhere.
std::string field_table(const Schema& schema, const char* section = nullptr) {
  std::string text =
      "| field | type | default | unit | meaning |\n| --- | --- | --- | --- | --- |\n";
  for (const Field& field : schema.fields) {
    text += "| `" + field.name + "` | " + cell(describe(field)) + " | " + cell(default_of(field)) +
            " | " + field.unit + " | " + cell(field.doc) + " |\n";
  }
  return text + "\n" + (section != nullptr ? resume_rule(section, schema) + "\n\n" : "");
}

Page command_page(const Command& command) {
  std::string text = "```\n" + usage(command) + "\n```\n\n" + command.summary + "\n\n";
  if (!command.about.empty()) {
    text += command.about + "\n\n";
  }
  if (const auto words = words_of(command); !words.empty()) {
    text += "| word | meaning |\n| --- | --- |\n";
    for (const auto& [word, meaning] : words) {
      text += "| `" + word + "` | " + cell(meaning) + " |\n";
    }
    text += "\n";
  }
  if (!command.examples.empty()) {
    text += "```sh\n";
    for (const Example& example : command.examples) {
      text += example.command + (example.doc.empty() ? "" : "   # " + example.doc) + "\n";
    }
    text += "```\n";
  }
  return page(
      "commands/" + dashed(command.name) + ".md", "megahost " + command.name, text, command.summary
  );
}

Page plugin_page(const Registry::Entry& entry) {
  const std::string kind(info(entry.kind).name), section(info(entry.kind).section);
  std::string text = entry.summary + "\n\nA plugin of kind " + kind + ", `" + entry.plugin->id +
                     "/" + entry.name + "`, version " + entry.plugin->version + ": " +
                     entry.plugin->summary + ".\n\n";
  const bool by_use =
      plugin_section(section) != nullptr && plugin_section(section)->kind == entry.kind;
  if (by_use) {
    text += "```toml\n[" + section + "]\nuse = \"" + entry.name + "\"\n```\n\n";
  }
  text += entry.schema.fields.empty()
              ? "It has no fields of its own.\n\n"
              : field_table(entry.schema, by_use ? section.c_str() : nullptr);
  if (by_use) {
    text += "In addition, the section `" + section + "` of every recipe has what " +
            "[the recipe's page](../recipe.md#" + section + ") lists.\n";
  }
  return page(
      "plugins/" + kind + "-" + entry.name + ".md",
      entry.name + " (" + kind + ")",
      text,
      entry.summary
  );
}

Page recipe_page(const RecipeCatalogue& catalogue) {
  Schema top = recipe_schema();
  for (Field& field : top.fields) {
    const auto& sections = section_names();
    if (std::find(sections.begin(), sections.end(), field.name) != sections.end()) {
      field.type = FieldType::table;
    }
  }
  std::string text = "Every key that the core reads itself. A section with a `use` has the fields "
                     "of the plugin that it names, too.\n\n"
                     "## top level\n\n" +
                     field_table(top, "");
  for (const std::string& name : section_names()) {
    text += "## " + name + "\n\n" + section_doc(name) + "\n\n" +
            field_table(shared_schema(name, catalogue.plugins), name.c_str());
    if (const PluginSectionInfo* section = plugin_section(name)) {
      text += "Plugins:\n\n";
      for (const Registry::Entry* entry : catalogue.of(section->kind)) {
        text += "- [" + entry->name + "](plugins/" + std::string(info(entry->kind).name) + "-" +
                entry->name + ".md): " + entry->summary +
                (entry->name == section->default_use ? " (taken where none is named)" : "") + "\n";
      }
      text += "\n";
    }
  }
  return page("recipe.md", "recipe", text + "## sweep\n\n" + field_table(sweep_schema()));
}

/// The meaning of an argument, as a sentence of a table.
std::string becomes_text(const MegatronArgument& argument) {
  const std::string key = "`" + std::string(argument.key) + "`";
  const std::string note(argument.note);
  switch (argument.becomes) {
  case Becomes::number:
  case Becomes::text:
    return key;
  case Becomes::on:
    return key + " = true";
  case Becomes::off:
    return key + " = false";
  case Becomes::word:
    return key + ": " + std::string(argument.words);
  case Becomes::settings:
    return "read together with others";
  case Becomes::same:
    return note.empty() ? "it is always so" : "it is always so: " + note;
  case Becomes::changes:
    return "no equivalent, training differs: " + note;
  case Becomes::nothing:
    return "no equivalent: " + note;
  }
  return "";
}

Page arguments_page() {
  std::string text =
      "Every argument of Megatron-LM that `megahost recipe import-args` knows, and what it is in a "
      "recipe. A `*` stands for any text.\n\n"
      "| argument | here |\n| --- | --- |\n";
  for (const MegatronArgument& argument : megatron_arguments()) {
    text += "| `--" + std::string(argument.name) + "` | " + cell(becomes_text(argument)) + " |\n";
  }
  for (const MegatronArguments& group : megatron_arguments_without()) {
    std::istringstream names{std::string(group.names)};
    std::string all;
    for (std::string name; names >> name;) {
      all += (all.empty() ? "`--" : ", `--") + name + "`";
    }
    text += "| " + all + " | " +
            (group.becomes == Becomes::changes ? "no equivalent, training differs: "
                                               : "no equivalent: ") +
            cell(std::string(group.reason)) + " |\n";
  }
  return page("recipe-import-args.md", "arguments of Megatron-LM", text);
}

std::vector<Page> header_pages(const std::filesystem::path& headers) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& item : std::filesystem::recursive_directory_iterator(headers, error)) {
    // abi.hpp is made when megahost is configured.
    if (item.path().extension() == ".hpp" && item.path().filename() != "abi.hpp") {
      files.push_back(item.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Page> pages;
  for (const auto& file : files) {
    const std::string name = file.lexically_relative(headers).string();
    std::string flat = name.substr(0, name.size() - 4);
    std::replace(flat.begin(), flat.end(), '/', '-');
    pages.push_back(page(
        "sdk/" + flat + ".md", "megahost/" + name, header_text(read_file(file, kLargestHeader))
    ));
  }
  return pages;
}

Page index_page(const std::vector<Page>& pages) {
  struct Group {
    const char* folder;
    const char* title;
  };

  std::string text = "The texts of `megahost help TOPIC`, as pages. Written by `megahost docs -o "
                     "docs/reference`.\n\n";
  for (const Group& group :
       {Group{"topics/", "Topics"},
        Group{"commands/", "Commands"},
        Group{"recipe", "Recipes"},
        Group{"plugins/", "Plugins"},
        Group{"sdk/", "SDK headers"}}) {
    text += std::string("## ") + group.title + "\n\n";
    for (const Page& other : pages) {
      if (other.file.starts_with(group.folder)) {
        text += "- [" + other.title + "](" + other.file + ")" +
                (other.summary.empty() ? "" : ": " + other.summary) + "\n";
      }
    }
    text += "\n";
  }
  return page("README.md", "Reference", text);
}

} // namespace

std::vector<Page>
reference_pages(const RecipeCatalogue& catalogue, const std::filesystem::path& headers) {
  std::vector<Page> pages;
  for (const Topic& topic : topics()) {
    pages.push_back(page(
        "topics/" + dashed(std::string(topic.name)) + ".md",
        std::string(topic.name),
        topic.text + "\n"
    ));
  }
  for (const Command& command : commands()) {
    pages.push_back(command_page(command));
  }
  pages.push_back(recipe_page(catalogue));
  pages.push_back(arguments_page());
  for (const Registry::Entry* entry : catalogue.plugins) {
    pages.push_back(plugin_page(*entry));
  }
  for (Page& header : header_pages(headers)) {
    pages.push_back(std::move(header));
  }
  pages.insert(pages.begin(), index_page(pages));
  return pages;
}

} // namespace mh
