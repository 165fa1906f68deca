#include "core/cli/main/parse.hpp"

#include "core/base/text.hpp"
#include "core/schema/sections.hpp"
#include "core/schema/terms.hpp"
#include "megahost/error.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>

namespace mh {

namespace {

std::string see_help(const Command& command) {
  return "see megahost " + command.name + " --help";
}

/// "write --set optimizer.lr=1e-3", for `--lr`, `--optimizer.lr=1e-3` and `optimizer.lr=1e-3`;
/// empty where that is not what was meant.
std::string as_setting(const Command& command, const std::string& word) {
  const bool sets =
      std::any_of(command.options.begin(), command.options.end(), [](const Option& option) {
        return option.name == "--set";
      });
  const size_t begin = std::min(word.find_first_not_of('-'), word.size());
  const size_t equals = word.find('=');
  const std::string key = word.substr(begin, equals - begin);
  const std::string value = equals == std::string::npos ? "=VALUE" : word.substr(equals);
  if (!sets || (begin == 0 && equals == std::string::npos)) {
    return "";
  }
  if (const auto meaning = meaning_of(key, core_schemas()); meaning && !meaning->key.empty()) {
    return "write --set " + meaning->key + value;
  }
  return key.find('.') == std::string::npos ? "" : "write --set " + key + value;
}

[[noreturn]] void refuse_extra(const Command& command, const std::string& word) {
  const std::string setting = as_setting(command, word);
  if (!word.starts_with("-")) {
    throw Error(
        "megahost " + command.name + " takes no further word \"" + word + "\"",
        setting.empty() ? see_help(command) : setting
    );
  }
  std::vector<std::string> known;
  for (const Option& option : command.options) {
    known.push_back(option.name);
  }
  const auto meant = nearest(word.substr(0, word.find('=')), known);
  throw Error(
      "megahost " + command.name + " has no option " + word,
      !setting.empty() ? setting
      : meant          ? "did you mean " + *meant + "? " + see_help(command)
                       : see_help(command)
  );
}

/// A group's own command, which lists: `plugins`, `presets`; null if the word is none.
const Command* group_command(const std::string& word) {
  const bool is_group = std::any_of(commands().begin(), commands().end(), [&](const Command& one) {
    return one.name.starts_with(word + " ");
  });
  const Command* command = is_group ? find_command(word) : nullptr;
  return command != nullptr && command->arguments.empty() ? command : nullptr;
}

} // namespace

Named named_command(const std::vector<std::string>& words) {
  if (words.size() >= 2) {
    if (const Command* list = words[1] == "list" ? group_command(words[0]) : nullptr) {
      return {list, 2};
    }
    if (const Command* command = find_command(words[0] + " " + words[1])) {
      return {command, 2};
    }
  }
  if (!words.empty()) {
    if (const Command* command = find_command(words[0])) {
      return {command, 1};
    }
  }
  return {};
}

Invocation parse(const Command& command, const std::vector<std::string>& words) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  // An argument after -- is no option: it is a word of the last argument, if that takes several.
  const bool takes_several =
      !command.arguments.empty() && command.arguments.back().name.ends_with("...");
  const auto end = takes_several ? std::find(words.begin(), words.end(), "--") : words.end();
  std::vector<std::string> arguments(command.arguments.size()), several;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = command.arguments[i].name;
    if (name.ends_with("...")) {
      app.add_option(name.substr(0, name.size() - 3), several)->required(words.end() - end < 2);
      arguments.pop_back();
    } else {
      const bool optional = name.starts_with("[");
      app.add_option(optional ? name.substr(1, name.size() - 2) : name, arguments[i])
          ->required(!optional);
    }
  }
  std::vector<std::vector<std::string>> values(command.options.size());
  std::vector<CLI::Option*> options;
  for (size_t i = 0; i < values.size(); ++i) {
    const Option& option = command.options[i];
    if (option.value.empty()) {
      options.push_back(app.add_flag(option.name));
      continue;
    }
    options.push_back(app.add_option(option.name, values[i]));
    options.back()->type_size(1)->allow_extra_args(false);
    if (option.repeatable) {
      options.back()->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
  }
  try {
    app.parse(std::vector<std::string>(std::reverse_iterator(end), words.rend()));
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string what = error.what(); // "--layouts: 1 required TEXT missing"
    const auto option = std::ranges::find(
        command.options, std::string_view(what).substr(0, what.find(':')), &Option::name
    );
    const bool known = option != command.options.end();
    throw Error(
        "megahost " + command.name + ": " +
            (known ? option->name + " needs a value: " + option->name + " " + option->value : what),
        see_help(command)
    );
  } catch (const CLI::ParseError& error) {
    throw Error("megahost " + command.name + ": " + error.what(), see_help(command));
  }
  if (const auto extra = app.remaining(); !extra.empty()) {
    refuse_extra(command, extra.front());
  }

  std::erase(arguments, ""); // left out
  arguments.insert(arguments.end(), several.begin(), several.end());
  arguments.insert(arguments.end(), end == words.end() ? end : end + 1, words.end());
  Invocation invocation{.command = command.name, .arguments = std::move(arguments), .options = {}};
  for (size_t i = 0; i < options.size(); ++i) {
    const Option& option = command.options[i];
    if (options[i]->count() == 0) {
      continue;
    }
    if (option.value.empty()) { // a flag, or --flag=CHOICE
      for (const std::string& value : options[i]->results()) {
        if (value != "true") {
          values[i].push_back(value);
        }
      }
    }
    for (const std::string& value : values[i]) {
      if (option.value.empty() && option.choices.empty()) {
        throw Error(option.name + " takes no value, found \"" + value + "\"", see_help(command));
      }
      if (!option.choices.empty() &&
          std::find(option.choices.begin(), option.choices.end(), value) == option.choices.end()) {
        const auto meant = nearest(value, option.choices);
        throw Error(
            option.name + " " + value + " is not one of " + join(option.choices),
            (meant ? "did you mean " + *meant + "? " : "") + see_help(command)
        );
      }
    }
    invocation.options[option.name] = values[i];
  }
  return invocation;
}

} // namespace mh
