#include "core/cli/command.hpp"

#include "core/base/text.hpp"
#include "core/cli/tables/tables.hpp"

#include <algorithm>

namespace mh {

namespace {

std::vector<Command> make_commands() {
  std::vector<Command> all;
  for (const auto& part :
       {training_commands(),
        layout_commands(),
        run_reading_commands(),
        checkpoint_commands(),
        bench_commands(),
        recipe_commands(),
        data_commands(),
        tokenizer_commands(),
        plugin_commands(),
        help_commands()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

} // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> all = make_commands();
  return all;
}

const Command* find_command(std::string_view name) {
  const auto found =
      std::find_if(commands().begin(), commands().end(), [&](const Command& command) {
        return command.name == name;
      });
  return found == commands().end() ? nullptr : &*found;
}

std::string usage(const Command& command) {
  std::string text = "megahost " + command.name;
  for (const Argument& argument : command.arguments) {
    text += " " + argument.name;
  }
  return text + (command.options.empty() ? "" : " [OPTION...]");
}

std::vector<std::pair<std::string, std::string>> words_of(const Command& command) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Argument& argument : command.arguments) {
    rows.emplace_back(argument.name, argument.doc);
  }
  for (const Option& option : command.options) {
    const bool flag = option.value.empty();
    rows.emplace_back(
        option.name + (!flag                    ? " " + option.value
                       : option.choices.empty() ? ""
                                                : "[=" + join(option.choices, "|") + "]"),
        option.doc + (flag || option.choices.empty() ? "" : ": " + join(option.choices)) +
            (option.repeatable ? "; may be repeated" : "")
    );
  }
  return rows;
}

} // namespace mh
