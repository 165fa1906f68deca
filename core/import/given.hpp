#pragma once
/// The arguments of a command, found by name.

#include "core/import/shell.hpp"
#include "core/megatron/arguments.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mh {

struct GivenArgument {
  const MegatronArgument* known = nullptr; ///< null: there is no such row
  std::string name;                        ///< without its dashes
  std::vector<std::string> values;
  std::string said{}; ///< setting that says it, where no argument does: "optimizer.lr = 1e-4"

  /// "--lr 1e-4", or what says it.
  [[nodiscard]] std::string text() const;
  /// The same without its values: "--lr", "optimizer.lr".
  [[nodiscard]] std::string label() const;
};

/// The arguments of a command line.
class GivenArguments {
public:
  /// Throws:  mh::Error for a word that belongs to no argument, and a value that is missing
  explicit GivenArguments(const std::vector<std::string>& words);

  /// Arguments that another file than a command says.
  explicit GivenArguments(std::vector<GivenArgument> all)
      : all_(std::move(all)) {}

  /// Arguments in the order in which they were given; of one that is given twice, the last.
  [[nodiscard]] const std::vector<GivenArgument>& all() const { return all_; }

  [[nodiscard]] const GivenArgument* find(std::string_view name) const;

  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }

  [[nodiscard]] std::string text(std::string_view name, const std::string& otherwise = "") const;
  /// Throws:  mh::Error if it is no number
  [[nodiscard]] double number(std::string_view name, double otherwise) const;
  [[nodiscard]] int64_t integer(std::string_view name, int64_t otherwise) const;

private:
  std::vector<GivenArgument> all_;
};

/// The row of an argument; null if there is none. Names of HEAD have dashes where older ones have some
/// underscores: both are found.
[[nodiscard]] const MegatronArgument* known_argument(std::string_view name);

/// Throws:  mh::Error naming the argument if the text is no number
[[nodiscard]] double argument_number(const GivenArgument& argument, const std::string& text);

} // namespace mh
