#include "core/cli/command.hpp"
#include "core/cli/reference/reference.hpp"
#include "core/cli/topics.hpp"

namespace mh {

namespace {

/// Text that troff prints as it is.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    result += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  }
  return (result.starts_with('.') || result.starts_with('\'') ? "\\&" : "") + result;
}

std::string row(const std::string& name, const std::string& doc) {
  return ".TP\n.B " + escaped(name) + "\n" + escaped(doc) + "\n";
}

std::string command_text(const Command& command) {
  std::string text = ".SS " + escaped(usage(command)) + "\n" + escaped(command.summary) + ".\n";
  if (!command.about.empty()) {
    text += ".PP\n" + escaped(command.about) + "\n";
  }
  for (const auto& [word, meaning] : words_of(command)) {
    text += row(word, meaning);
  }
  return text;
}

} // namespace

std::string manual_page(std::string_view version) {
  std::string text = ".\\\" Written by megahost docs.\n.TH MEGAHOST 1 \"\" \"megahost " +
                     escaped(version) + "\" \"User Commands\"\n";
  text += ".SH NAME\nmegahost \\- trains large transformers, on one core or on thousands of GPUs\n";
  text += ".SH SYNOPSIS\n.B megahost\n.I COMMAND\n[\\fIWORD\\fR...] [\\fIOPTION\\fR...]\n.br\n"
          ".B megahost help\n.I TOPIC\n";
  text +=
      ".SH DESCRIPTION\nA recipe in Lua or TOML says what is trained; plugins supply its parts.\n"
      ".B megahost help\nwith the name of a command, a plugin, a key of a recipe or a concept "
      "says more about it.\n";
  text += ".SH COMMANDS\n";
  for (const Command& command : commands()) {
    text += command_text(command);
  }
  text += ".SH EXIT STATUS\n";
  for (const ExitStatus& status : exit_statuses()) {
    text += row(std::to_string(status.code), std::string(status.meaning));
  }
  text += row("128 + n", "stopped by signal n") + ".SH ENVIRONMENT\n";
  for (const Variable& variable : variables()) {
    text += row(std::string(variable.name), std::string(variable.doc));
  }
  return text;
}

} // namespace mh
