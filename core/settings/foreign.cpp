#include "core/settings/foreign.hpp"

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/import/importer.hpp"
#include "core/language/problem.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <string>

namespace mh {

bool is_nothing(const Value& value) {
  return value.is_null() || (value.is_boolean() && !value.as_boolean()) ||
         (value.is_number() && value.as_number() == 0) ||
         (value.is_string() && value.as_string().empty()) ||
         (value.is_array() && value.as_array().empty()) ||
         (value.is_table() && value.as_table().empty());
}

double share_of_rate(double rate, double share) {
  return std::stod(formatted("%.12g", rate * share));
}

std::string words_known(std::string_view words) {
  std::vector<std::string> known;
  for (const std::string& pair : parts_of(std::string(words), ' ')) {
    known.push_back(pair.substr(0, pair.find('=')));
  }
  return join(known);
}

void refuse_value(const Value& at, const std::string& message, const std::string& hint) {
  throw RecipeError({{at.origin, "", message, "", hint}});
}

namespace {

[[noreturn]] void wrong_type(std::string_view path, const Value& value, const char* expected) {
  refuse_value(
      value, std::string(path) + " is " + describe(value.type()) + ", expected " + expected
  );
}

} // namespace

const Value* ForeignSettings::find(std::string_view path) const {
  const Value* found = tree_.find_path(path);
  return found == nullptr || found->is_null() ? nullptr : found;
}

bool ForeignSettings::is(std::string_view path, bool otherwise) const {
  const Value* found = find(path);
  if (found != nullptr && !found->is_boolean()) {
    wrong_type(path, *found, "true or false");
  }
  return found == nullptr ? otherwise : found->as_boolean();
}

double ForeignSettings::number(std::string_view path, double otherwise) const {
  const Value* found = find(path);
  if (found != nullptr && !found->is_number()) {
    wrong_type(path, *found, "a number");
  }
  return found == nullptr ? otherwise : found->as_number();
}

int64_t ForeignSettings::integer(std::string_view path, int64_t otherwise) const {
  const auto whole = exact_integer(number(path, static_cast<double>(otherwise)));
  if (!whole) {
    refuse(path, std::string(path) + " is no whole number");
  }
  return *whole;
}

std::string ForeignSettings::text(std::string_view path, const std::string& otherwise) const {
  const Value* found = find(path);
  if (found != nullptr && !found->is_string()) {
    wrong_type(path, *found, "a text");
  }
  return found == nullptr ? otherwise : found->as_string();
}

void ForeignSettings::set(const std::string& key, Value value, std::string_view by) {
  const Value* given = find(by);
  std::string why(by);
  if (given != nullptr && !given->is_table() && !given->is_array()) {
    why += " = " + to_text(*given);
  }
  result_.set(key, std::move(value), why);
}

void ForeignSettings::comment(const std::string& text) {
  result_.comments.push_back(text);
}

bool ForeignSettings::is_set(std::string_view key) const {
  return result_.tree.find_path(key) != nullptr;
}

void ForeignSettings::refuse(
    std::string_view path, const std::string& message, const std::string& hint
) const {
  const Value* found = find(path);
  refuse_value(found != nullptr ? *found : tree_, message, hint);
}

const ForeignKey* ForeignSettings::row(const std::string& path) const {
  const auto found = std::find_if(keys_.begin(), keys_.end(), [&](const ForeignKey& key) {
    return fnmatch(std::string(key.name).c_str(), path.c_str(), 0) == 0;
  });
  return found == keys_.end() ? nullptr : &*found;
}

std::string ForeignSettings::meaning(const ForeignKey& row, const Value& value) const {
  const std::string word = value.is_string() ? value.as_string() : to_text(value);
  for (const std::string& pair : parts_of(std::string(row.words), ' ')) {
    if (pair.starts_with(word + "=")) {
      return pair.substr(word.size() + 1);
    }
  }
  refuse_value(
      value,
      std::string(row.name) + " is " + to_text(value) + ", which has no equivalent",
      "expected one of " + words_known(row.words)
  );
}

void ForeignSettings::take(const std::string& path, const Value& value) {
  const ForeignKey* found = row(path);
  if (found == nullptr) {
    std::vector<std::string> names;
    for (const ForeignKey& key : keys_) {
      names.emplace_back(key.name);
    }
    const auto meant = nearest(path, names);
    comment(path + ": not known here" + (meant ? "; did you mean " + *meant + "?" : ""));
    return;
  }
  const std::string key(found->key);
  switch (found->becomes) {
  case Becomes::number:
    set(key, number_value(number(path, 0)), path);
    break;
  case Becomes::text:
    set(key, text(path), path);
    break;
  case Becomes::on:
    set(key, is(path), path);
    break;
  case Becomes::off:
    set(key, !is(path), path);
    break;
  case Becomes::word:
    set(key, meaning(*found, value), path);
    break;
  case Becomes::nothing:
    harmless_.push_back(path);
    break;
  case Becomes::changes:
    if (!is_nothing(value)) {
      comment(path + ": no equivalent, training differs: " + std::string(found->note));
    }
    break;
  case Becomes::settings:
  case Becomes::same:
    break;
  }
}

void ForeignSettings::take_all(const Table& table, const std::string& above) {
  for (const auto& entry : table) {
    const std::string path = above + (above.empty() ? "" : ".") + entry.key;
    if (entry.value.is_table() && row(path) == nullptr) {
      take_all(entry.value.as_table(), path);
    } else if (!entry.value.is_null()) {
      take(path, entry.value);
    }
  }
}

void ForeignSettings::take() {
  take_all(tree_.as_table(), "");
  if (!harmless_.empty()) {
    comment("without an equivalent, and no number depends on them: " + join(harmless_));
  }
}

} // namespace mh
