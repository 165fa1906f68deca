#include "core/language/problem.hpp"

#include "core/base/text.hpp"

#include <algorithm>
#include <sstream>
#include <tuple>

namespace mh {

namespace {

constexpr size_t kWidth = 110;

/// Line `number` (from 1) of a text, without its end.
std::string_view line_of(std::string_view text, int number) {
  for (; number > 1 && !text.empty(); --number) {
    const size_t end = text.find('\n');
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  text = text.substr(0, text.find('\n'));
  return text.ends_with('\r') ? text.substr(0, text.size() - 1) : text;
}

/// The part of a text that a terminal can show in one line, one column per character.
std::string printable(std::string_view bytes) {
  std::string text = valid_utf8(bytes);
  std::replace_if(
      text.begin(),
      text.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; },
      ' '
  );
  return text;
}

size_t columns(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

/// The quoted line and the carets below it.
std::string excerpt(const Origin& at, const std::string& label) {
  std::string_view line = line_of(at.source->text, at.line);
  size_t start = std::min<size_t>(static_cast<size_t>(std::max(at.column - 1, 0)), line.size());
  std::string lead;
  if (line.size() > kWidth && start > kWidth / 2) {
    const size_t cut = start - kWidth / 2;
    line.remove_prefix(cut);
    start -= cut;
    lead = "...";
  }
  line = line.substr(0, kWidth);
  const std::string number = std::to_string(at.line);
  const std::string margin(number.size() + 1, ' ');
  std::string text = margin + " |\n " + number + " | " + lead + printable(line);
  if (at.column == 0) {
    return text + (label.empty() ? "" : "\n" + margin + " | " + label);
  }
  const size_t room = line.size() - start;
  const size_t marked =
      std::clamp<size_t>(static_cast<size_t>(at.length), 1, std::max<size_t>(room, 1));
  const std::string carets(
      std::max<size_t>(1, columns(printable(line.substr(start, marked)))), '^'
  );
  text += "\n" + margin + " | " +
          std::string(lead.size() + columns(printable(line.substr(0, start))), ' ') + carets;
  return text + (label.empty() ? "" : " " + label);
}

/// Breaks a long note at spaces; further lines begin with `indent`.
std::string wrapped(const std::string& note, const std::string& indent) {
  std::istringstream words(note);
  std::string text;
  size_t column = 0;
  for (std::string word; words >> word; column += word.size() + 1) {
    if (column + word.size() > kWidth && column > 0) {
      text += "\n" + indent;
      column = 0;
    } else {
      text += text.empty() ? "" : " ";
    }
    text += word;
  }
  return text;
}

} // namespace

std::string render(const Problem& problem) {
  std::string text = problem.message;
  const Origin& at = problem.origin;
  std::string margin = " ";
  if (!at.source) {
    if (!problem.label.empty()) {
      text += "\n  = " + problem.label;
    }
  } else {
    margin = std::string(std::to_string(at.line).size() + 1, ' ');
    text += "\n " + margin.substr(1) + "--> " + at.where();
    if (at.line > 0) {
      text += "\n" + excerpt(at, problem.label);
    } else if (!problem.label.empty()) {
      text += "\n" + margin + " = " + problem.label;
    }
  }
  if (!problem.note.empty()) {
    text += "\n" + margin + " = " + wrapped(problem.note, margin + "   ");
  }
  return text;
}

namespace {

std::string render_all(const std::vector<Problem>& problems) {
  std::string text;
  for (size_t i = 0; i < std::min(problems.size(), kMostProblems); ++i) {
    text += (i ? "\n\nerror: " : "") + render(problems[i]);
  }
  if (problems.size() > kMostProblems) {
    text += "\n\nerror: and " + std::to_string(problems.size() - kMostProblems) + " more";
  }
  return text;
}

} // namespace

RecipeError::RecipeError(std::vector<Problem> problems)
    : Error(render_all(problems))
    , problems_(std::move(problems)) {}

RecipeError::~RecipeError() = default;

void throw_problems(std::vector<Problem> problems) {
  if (problems.empty()) {
    return;
  }
  const auto place = [](const Problem& problem) {
    const Origin& at = problem.origin;
    return std::tuple(at.source ? at.source->name : "", at.line, at.column);
  };
  std::stable_sort(problems.begin(), problems.end(), [&place](const Problem& a, const Problem& b) {
    return place(a) < place(b);
  });
  throw RecipeError(std::move(problems));
}

} // namespace mh
