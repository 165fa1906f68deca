#pragma once
/// Settings files of other programs, key by key.

#include "core/import/import.hpp"
#include "core/megatron/arguments.hpp"
#include "megahost/value.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// A key of another program's settings, and what it is in a recipe.
struct ForeignKey {
  std::string_view name; ///< "training.seq_len"; a * stands for any text
  Becomes becomes;
  std::string_view key{};   ///< "model.seq_length"
  std::string_view words{}; ///< translations for `word`: "fused=adamw sgd=sgd"
  std::string_view note{};  ///< why there is no equivalent
};

/// A file of settings that becomes a recipe by the rows of a table.
class ForeignSettings {
public:
  ForeignSettings(const Value& tree, std::span<const ForeignKey> keys)
      : tree_(tree)
      , keys_(keys) {}

  /// Sets what rows say by themselves, and comments on what has no equivalent and on keys that no row
  /// has. A key without a value (null) is as if it were not there.
  ///
  /// Throws:  RecipeError with the place of a value of another type, or a word that has no equivalent
  void take();

  /// The value of a key; null if it is absent, or has none.
  [[nodiscard]] const Value* find(std::string_view path) const;
  /// Throws:  as the following, RecipeError with the place of a value of another type
  [[nodiscard]] bool is(std::string_view path, bool otherwise = false) const;
  [[nodiscard]] double number(std::string_view path, double otherwise) const;
  [[nodiscard]] int64_t integer(std::string_view path, int64_t otherwise) const;
  [[nodiscard]] std::string text(std::string_view path, const std::string& otherwise = "") const;

  /// `by`: the key that it comes from, or words that say why.
  void set(const std::string& key, Value value, std::string_view by);
  void comment(const std::string& text);
  [[nodiscard]] bool is_set(std::string_view key) const;

  /// Throws RecipeError at the place of a key.
  [[noreturn]] void
  refuse(std::string_view path, const std::string& message, const std::string& hint = "") const;

  [[nodiscard]] ImportedRecipe& result() { return result_; }

private:
  void take_all(const Table& table, const std::string& above);
  void take(const std::string& path, const Value& value);
  [[nodiscard]] const ForeignKey* row(const std::string& path) const;
  [[nodiscard]] std::string meaning(const ForeignKey& row, const Value& value) const;

  const Value& tree_;
  std::span<const ForeignKey> keys_;
  ImportedRecipe result_;
  std::vector<std::string> harmless_;
};

/// A rate times a share of it, without the digits in which the product of binary fractions ends.
[[nodiscard]] double share_of_rate(double rate, double share);

/// Whether a value says nothing: false, 0, an empty text, list or table.
[[nodiscard]] bool is_nothing(const Value& value);

/// "a, b" of the words of translations "a=x b=y".
[[nodiscard]] std::string words_known(std::string_view words);

/// Throws RecipeError at a value.
[[noreturn]] void
refuse_value(const Value& at, const std::string& message, const std::string& hint = "");

} // namespace mh
