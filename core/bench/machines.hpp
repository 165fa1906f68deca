#pragma once
/// The machines that plans are for.

#include "core/plan/hardware.hpp"
#include "core/recipe/load.hpp"
#include "megahost/host.hpp"
#include "megahost/recipe.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// Finds machines by what `--on` says: the name of a row of hardware.toml, "this" for this CPU, or
/// nothing, where the recipe's device says it. This CPU's rates are found out once.
class Machines {
public:
  /// Throws:  mh::Error for a name that no row has
  Machines(std::string on, Host& host);

  /// The layers that recipes planned for it are read with: the device of the machine that was
  /// named.
  [[nodiscard]] std::vector<Layer> layers() const;

  /// The facts that recipes are read with that run on `world` ranks of it.
  [[nodiscard]] Facts facts(int64_t world) const;

  /// The machine of one of `ranks` ranks of a recipe.
  ///
  /// Throws:  mh::Error if neither --on nor the recipe's device names a machine
  [[nodiscard]] Machine of(const Recipe& recipe, int64_t ranks) const;

  /// Notes for the user about the machine of a recipe that has been asked for.
  [[nodiscard]] std::vector<std::string> notes(const Recipe& recipe) const;

private:
  [[nodiscard]] const PlannedDevice& device(const Recipe& recipe) const;

  std::string on_;
  Host& host_;
  std::optional<Machine> named_;
  mutable std::optional<Machine> cpu_; // once it has been asked for
  mutable bool calibrated_ = false;    // whether its rates are those of real steps
};

} // namespace mh
