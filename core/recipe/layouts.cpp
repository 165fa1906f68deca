#include "core/recipe/layouts.hpp"

#include "core/recipe/text.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <utility>

namespace mh {

namespace {

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  const size_t end = text.find_last_not_of(" \t\n");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

std::vector<std::string> split(const std::string& text, char between) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(between, begin), text.size());
    if (std::string part = trimmed(text.substr(begin, end - begin)); !part.empty()) {
      parts.push_back(std::move(part));
    }
    begin = end + 1;
  }
  return parts;
}

Layout layout_of(const std::vector<std::string>& items) {
  Layout layout{join(items, ","), {}};
  for (const std::string& item : items) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == item.size()) {
      throw Error(
          "the layout \"" + layout.text + "\" has the item \"" + item + "\", expected KEY=VALUE",
          "write --layouts 'tensor=2; pipeline=2,data=2'"
      );
    }
    const bool whole = item.substr(0, equals).find('.') != std::string::npos;
    layout.sets.push_back(whole ? item : "parallel." + item);
  }
  return layout;
}

/// Fields of `parallel` that are part of a strategy although their names do not say so.
struct Part {
  const char* field;
  const char* strategy;
};

constexpr Part kParts[] = {
    {"schedule", "pipeline"},
    {"virtual_stages", "pipeline"},
    {"sequence", "tensor"},
    {"zero", "data"},
};

/// The strategy without which a field does nothing; empty: it is a degree of its own.
std::string strategy_of(const std::string& field, const std::vector<std::string>& strategies) {
  for (const Part& part : kParts) {
    if (field == part.field) {
      return part.strategy;
    }
  }
  for (const std::string& strategy : strategies) {
    if (field.starts_with(strategy + "_")) {
      return strategy;
    }
  }
  return "";
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// What a field may be beside its default, which is left out of a layout's text.
std::vector<std::string> values_of(
    const Field& field,
    const std::vector<std::string>& schedules,
    const std::string& text_of_default
) {
  std::vector<std::string> values;
  if (field.name == "schedule") {
    values = schedules;
  } else if (field.type == FieldType::boolean) {
    values = {"true"};
  } else if (!field.choices.empty() && field.type == FieldType::string) {
    values = field.choices;
  } else if (field.name == "virtual_stages") {
    values = {"2"};
  } else if (field.type == FieldType::integer && field.max) {
    for (auto level = static_cast<int64_t>(*field.min) + 1; level <= *field.max; ++level) {
      values.push_back(std::to_string(level));
    }
  }
  std::erase(values, text_of_default);
  return values;
}

/// A layout in the making: its items, and how many ranks they take.
struct Draft {
  std::vector<std::string> items;
  std::vector<std::string> active; // strategies
  int64_t ranks = 1;
};

} // namespace

std::vector<Layout> parse_layouts(const std::string& text) {
  std::vector<Layout> layouts;
  for (const std::string& one : split(text, ';')) {
    layouts.push_back(layout_of(split(one, ',')));
  }
  if (layouts.empty()) {
    throw Error("--layouts names none", "write --layouts 'tensor=2; pipeline=2,data=2', or all");
  }
  return layouts;
}

std::vector<Layout> all_layouts(
    const Schema& parallel,
    const std::vector<std::string>& strategies,
    const std::vector<std::string>& schedules,
    int64_t ranks
) {
  std::vector<Draft> drafts{{}};
  for (const Field& field : parallel.fields) { // degrees first: the others depend on them
    const bool degree =
        (field.type == FieldType::integer || field.type == FieldType::integer_or_string) &&
        contains(strategies, field.name) && strategy_of(field.name, strategies).empty();
    for (size_t i = 0, count = degree ? drafts.size() : 0; i < count; ++i) {
      for (int64_t n = 2; n * drafts[i].ranks <= ranks; ++n) {
        Draft draft = drafts[i];
        draft.items.push_back(field.name + "=" + std::to_string(n));
        draft.active.push_back(field.name);
        draft.ranks *= n;
        drafts.push_back(std::move(draft));
      }
    }
  }
  for (const Field& field : parallel.fields) {
    const std::string strategy = strategy_of(field.name, strategies);
    const bool installed =
        !strategy.empty() && (field.name.starts_with(strategy + "_") ||
                              contains(strategies, field.name) || strategy == "pipeline");
    const std::string usual =
        field.default_value.is_string() ? field.default_value.as_string() : "";
    for (size_t i = 0, count = installed ? drafts.size() : 0; i < count; ++i) {
      for (const std::string& value : values_of(field, schedules, usual)) {
        if (contains(drafts[i].active, strategy)) {
          Draft draft = drafts[i];
          draft.items.push_back(field.name + "=" + value);
          drafts.push_back(std::move(draft));
        }
      }
    }
  }
  std::vector<Layout> layouts;
  for (const Draft& draft : drafts) {
    if (!draft.items.empty()) {
      layouts.push_back(layout_of(draft.items));
    }
  }
  return layouts;
}

} // namespace mh
