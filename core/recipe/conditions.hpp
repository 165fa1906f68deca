#pragma once
/// A recipe's tree as conditions between its sections read it, and how they report.

#include "core/recipe/problem.hpp"
#include "core/recipe/resolve.hpp"
#include "core/recipe/terms.hpp"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace mh {

class Conditions {
public:
  Conditions(const Value& tree, const Facts& facts, std::vector<Problem>& problems)
      : tree_(tree)
      , facts_(facts)
      , problems_(problems) {
    for (const Problem& problem : problems) {
      refused_.push_back(problem.key);
      if (const auto meaning = meaning_of(problem.key); meaning && !meaning->key.empty()) {
        refused_.push_back(meaning->key);
      }
    }
  }

protected:
  static std::string text(int64_t number) { return std::to_string(number); }

  /// True if none of the keys, and none of the sections whole, has been refused.
  bool sound(std::initializer_list<const char*> keys) const {
    return std::all_of(keys.begin(), keys.end(), [this](const std::string key) {
      return std::none_of(refused_.begin(), refused_.end(), [&key](const std::string& refused) {
        return refused == key || key.starts_with(refused + ".") ||
               refused == key.substr(0, key.find('.')) + ".use";
      });
    });
  }

  bool has(const char* key) const { return tree_.find_path(key) != nullptr; }

  /// 0 where the key is absent or no number.
  int64_t integer(const char* key) const {
    const Value* value = tree_.find_path(key);
    return value && value->is_integer() ? value->as_integer() : 0;
  }

  double number(const char* key) const {
    const Value* value = tree_.find_path(key);
    return value && value->is_number() ? value->as_number() : 0;
  }

  std::string word(const char* key) const {
    const Value* value = tree_.find_path(key);
    return value && value->is_string() ? value->as_string() : "";
  }

  /// Reports at the first of the keys that somebody wrote.
  void report(std::initializer_list<const char*> keys, std::string message, std::string note = "") {
    const char* at = *keys.begin();
    for (const char* key : keys) {
      const Value* value = tree_.find_path(key);
      if (value && value->origin.line > 0) {
        at = key;
        break;
      }
    }
    const Value* value = tree_.find_path(at);
    problems_.push_back(
        {value ? value->origin : tree_.origin, at, std::move(message), "", std::move(note)}
    );
  }

  int64_t data_degree() const {
    if (const int64_t given = integer("parallel.data"); given > 0) {
      return given;
    }
    return std::max<int64_t>(
        1,
        facts_.world / (integer("parallel.tensor") * integer("parallel.pipeline") *
                        integer("parallel.context"))
    );
  }

  static std::string nearest_multiples(int64_t number, int64_t step) {
    const int64_t below = number / step * step;
    return (below > 0 ? text(below) + ", " : "") + text(below + step);
  }

  /// "nearest: parallel.tensor 4, 6": the degrees next to the one given that divide `whole`.
  std::string nearest_degrees(const char* key, int64_t whole) const {
    const int64_t given = integer(key);
    std::string text;
    for (int64_t below = given - 1; below > 0 && text.empty(); --below) {
      text = whole % below == 0 ? std::to_string(below) : "";
    }
    for (int64_t above = given + 1; above <= whole; ++above) {
      if (whole % above == 0) {
        text += (text.empty() ? "" : ", ") + std::to_string(above);
        break;
      }
    }
    return std::string("; nearest: ") + key + " " + text;
  }

  void divides(const char* whole, const char* part, const std::string& why) {
    if (sound({whole, part}) && integer(whole) > 0 && integer(part) > 0 &&
        integer(whole) % integer(part) != 0) {
      report(
          {whole, part},
          std::string(whole) + " " + text(integer(whole)) + " is not divisible by " + part + " " +
              text(integer(part)),
          why + (std::string(part).starts_with("parallel.") ? nearest_degrees(part, integer(whole))
                                                            : "")
      );
    }
  }

  const Value& tree_;
  const Facts& facts_;
  std::vector<Problem>& problems_;
  std::vector<std::string> refused_;
};

/// Those of the layout: of degrees among themselves, and of them with the model.
void check_layout_contradictions(const Conditions& conditions);

} // namespace mh
