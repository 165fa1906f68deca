// Tests of what a plugin does with its options.

#include "core/base/text.hpp"
#include "core/conformance/instance.hpp"
#include "core/conformance/tests.hpp"
#include "core/language/read.hpp"
#include "megahost/error.hpp"

#include <limits>
#include <optional>

namespace mh::check {

namespace {

std::string section(const Case& c) {
  return std::string(info(c.entry->kind).section);
}

/// The refusal of these options; absent if it takes them.
std::optional<std::string> refusal(const Case& c, const Table& options) {
  try {
    make_once(*c.entry, options);
  } catch (const Error& error) {
    return std::string(error.what()) + " " + error.hint();
  }
  return std::nullopt;
}

Table with(Table options, const std::string& key, Value value) {
  options.set(key, std::move(value));
  return options;
}

/// Odd values of a field: other types, ends of its range and beyond, texts of all sorts.
std::vector<Value> odd_values(const Field& field) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  std::vector<Value> values{
      true,
      0,
      1,
      -1,
      3,
      17,
      1000,
      kMost,
      -kMost,
      0.5,
      1e308,
      -1e308,
      std::numeric_limits<double>::infinity(),
      std::numeric_limits<double>::quiet_NaN(),
      "",
      "none",
      std::string(5000, 'x'),
      "\xff\xfe",
      Value::Array{},
      Value::Array{1, 2, 3},
      Value::Array{"a"},
      Value::Array{Value::Array{}},
      Table(),
      Table{{"a", 1}}};
  for (const auto& end : {field.min, field.max}) {
    if (end) {
      for (const double near : {*end, *end - 1, *end + 1}) {
        values.emplace_back(near);
        if (const auto whole = exact_integer(near)) {
          values.emplace_back(*whole);
        }
      }
    }
  }
  for (const std::string& choice : field.choices) {
    values.emplace_back(choice);
    values.emplace_back(Value::Array{choice, choice});
  }
  return values;
}

} // namespace

/// Defaults are filled in, written as TOML, read, and filled in again.
void options_roundtrip(const Case& c) {
  std::vector<Problem> problems;
  Value before = complete(c.entry->schema, options_of(c), section(c), problems);
  if (!problems.empty()) { // the tests' sizes may be refused, which are not its defaults
    problems.clear();
    before = complete(c.entry->schema, given_options(c), section(c), problems);
  }
  const std::string text = "options = " + to_text(before) + "\n";
  const Value read =
      read_toml(std::make_shared<const Source>(Source{"defaults", text, "defaults"}));
  const Value after = complete(c.entry->schema, *read.find("options"), section(c), problems);
  if (!problems.empty()) {
    if (has_given_options(c)) {
      fail("the options of --set are refused: " + problems.front().message, "give others");
    }
    fail(
        "its own defaults are refused: " + problems.front().message,
        "let each default be in its field's range"
    );
  }
  if (!(before == after)) {
    fail("defaults differ once they were written and read: " + to_text(after));
  }
}

/// One field at a time. Only mh::Error may come of it: anything else ends a run without a word.
void options_fuzz(const Case& c) {
  for (const Field& field : c.entry->schema.fields) {
    for (const Value& value : odd_values(field)) {
      std::string shown = to_text(value);
      shown = field.name + " = " + shown.substr(0, 40) + (shown.size() > 40 ? "..." : "");
      try {
        make_once(*c.entry, with(options_of(c), field.name, value));
      } catch (const Error&) {
        continue;
      } catch (const std::exception& error) {
        const std::string what = error.what();
        fail(
            shown + " throws an exception that is no mh::Error: " + what.substr(0, what.find('\n')),
            "give the field a range, or check it and throw mh::Error"
        );
      }
    }
  }
}

/// Its error about an odd value names a field, the section or itself; its conditions are about
/// fields that it has.
void names_on_errors(const Case& c) {
  for (const auto& check : c.entry->schema.checks) {
    if (c.entry->schema.find(check.field) == nullptr) {
      fail(
          "a condition is reported at the field " + check.field + ", which it does not have",
          "name a field of fields() in f.check"
      );
    }
  }
  std::vector<std::string> names{section(c), c.entry->name, std::string(info(c.entry->kind).name)};
  for (const Field& field : c.entry->schema.fields) {
    names.push_back(field.name);
  }
  for (const Field& field : c.entry->schema.fields) {
    for (const Value& value : odd_values(field)) {
      std::optional<std::string> said;
      try {
        said = refusal(c, with(options_of(c), field.name, value));
      } catch (const std::exception&) {
        continue; // options-fuzz says so
      }
      const bool named = !said || std::any_of(names.begin(), names.end(), [&](const auto& name) {
        return said->find(name) != std::string::npos;
      });
      if (!named) {
        fail(
            "what it says to an odd " + field.name + " names no option: " + *said,
            "say where, what was found and what was expected"
        );
      }
    }
  }
}

} // namespace mh::check
