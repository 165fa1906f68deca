#include "core/cli/help.hpp"

#include "core/cli/topics.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace mh {

namespace {

using HelpRows = std::vector<std::pair<std::string, std::string>>;

/// Breaks text into lines of at most `width` cells.
std::vector<std::string> wrap(const std::string& text, size_t width) {
  std::vector<std::string> lines;
  std::string line;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(' ', start), text.size());
    if (!line.empty() && line.size() + 1 + end - start > width) {
      lines.push_back(std::exchange(line, ""));
    }
    line += (line.empty() ? "" : " ") + text.substr(start, end - start);
    start = end + 1;
  }
  lines.push_back(line);
  return lines;
}

std::string paragraph(const std::string& text, const Terminal& terminal) {
  std::string result;
  for (const std::string& line :
       wrap(text, static_cast<size_t>(std::clamp(terminal.width, 40, 100)))) {
    result += line + "\n";
  }
  return result;
}

/// Two columns; the right one is wrapped.
std::string table(const HelpRows& rows, const Terminal& terminal) {
  size_t left = 0;
  for (const auto& [name, doc] : rows) {
    left = std::max(left, name.size());
  }
  const auto width = static_cast<size_t>(std::clamp(terminal.width, 40, 100));
  const size_t right = std::max<size_t>(24, width > left + 4 ? width - left - 4 : 0);
  std::string text;
  for (const auto& [name, doc] : rows) {
    const auto lines = wrap(doc, right);
    text += "  " + terminal.paint(Paint::cyan, name) + std::string(left - name.size() + 2, ' ') +
            lines[0];
    for (size_t i = 1; i < lines.size(); ++i) {
      text += "\n" + std::string(left + 4, ' ') + lines[i];
    }
    text += "\n";
  }
  return text;
}

std::string heading(const std::string& text, const Terminal& terminal) {
  return "\n" + terminal.paint(Paint::bold, text) + "\n";
}

} // namespace

std::string overview(const Terminal& terminal) {
  std::string text =
      terminal.paint(Paint::bold, "megahost") +
      " trains large transformers, on one core or on thousands of GPUs. A recipe says what.\n";
  text += heading("First steps", terminal);
  text += table(
      {{"megahost run recipes/quickstart.lua",
        "watch a small Llama learn real text, three minutes"},
       {"megahost recipe show recipes/quickstart.lua", "every setting of that run"},
       {"megahost plugins", "the parts that a recipe can be made of"}},
      terminal
  );
  std::vector<std::string> groups;
  for (const Command& command : commands()) {
    if (std::find(groups.begin(), groups.end(), command.group) == groups.end()) {
      groups.push_back(command.group);
    }
  }
  for (const std::string& group : groups) {
    HelpRows rows;
    for (const Command& command : commands()) {
      if (command.group == group) {
        std::string line = usage(command).substr(std::string_view("megahost ").size());
        rows.emplace_back(line.substr(0, line.find(" [")), command.summary);
      }
    }
    text += heading(group, terminal) + table(rows, terminal);
  }
  std::string statuses =
      "megahost help TOPIC says more about a command, a plugin, a recipe's key or a "
      "concept. Exit status:";
  for (const ExitStatus& status : exit_statuses()) {
    const std::string meaning(status.meaning);
    statuses += " " + std::to_string(status.code) + " " +
                meaning.substr(0, meaning.find_first_of(",:")) + ",";
  }
  return text + "\n" +
         paragraph(
             statuses + " 128 + n stopped by signal n. --no-color, or "
                        "NO_COLOR in the environment, prints without colours.",
             terminal
         );
}

std::string help(const Command& command, const Terminal& terminal) {
  std::string text = terminal.paint(Paint::bold, usage(command)) + "\n\n" + command.summary + "\n";
  if (!command.about.empty()) {
    text += "\n" + paragraph(command.about, terminal);
  }
  const HelpRows rows = words_of(command);
  if (!rows.empty()) {
    text += "\n" + table(rows, terminal);
  }
  if (!command.examples.empty()) {
    text += heading("Examples", terminal);
    for (const Example& example : command.examples) {
      text += "  " + terminal.paint(Paint::cyan, example.command) +
              (example.doc.empty() ? "" : "   # " + example.doc) + "\n";
    }
  }
  return text;
}

std::string group_help(std::string_view group, const Terminal& terminal) {
  HelpRows rows;
  for (const Command& command : commands()) {
    if (command.name.starts_with(std::string(group) + " ")) {
      rows.emplace_back("megahost " + command.name, command.summary);
    }
  }
  return table(rows, terminal);
}

std::string topic_help(const Topic& topic, const Terminal& terminal) {
  std::string text =
      terminal.paint(Paint::bold, topic.name) + ": " + std::string(topic.summary) + "\n\n";
  return text + topic.text + "\n";
}

std::string term_help(const Term& term, const Terminal& terminal) {
  std::string others;
  for (const std::string_view name : term.also) {
    others += (others.empty() ? " (" : ", ") + std::string(name);
  }
  return terminal.paint(Paint::bold, term.name) + others + (others.empty() ? "" : ")") + "\n  " +
         std::string(term.text) + "\n";
}

} // namespace mh
