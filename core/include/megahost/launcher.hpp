#pragma once
/// Launchers: how a process learns its rank.
///
/// Torchrun, Open MPI, PMI, Slurm and `--nproc` are known. Before their variables megahost asks
/// launcher plugins: the one that a recipe names with its options,
///
/// ```lua
/// return { launcher = { use = "mine", port = 29500 } }  -- or "mine"
/// ```
///
/// and where a recipe names none all that are open (`--plugin`, the recipe's `plugins`) or lie in a
/// plugin folder as launchers-NAME.so and have no required option.
///
/// The order: the recipe's files are read and merged, without knowing any rank; its plugins are
/// opened; its `launcher` is checked alone, and asked; only then, with the number of ranks, is the
/// rest of the recipe resolved. So a recipe says the same on each rank, and a launcher's options
/// cannot depend on the others' values.

#include "megahost/export.hpp"
#include "megahost/kind.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace mh {

/// This process's place among all processes of a run.
struct World {
  int64_t rank = 0, size = 1;             ///< among all processes
  int64_t local_rank = 0, local_size = 1; ///< on this machine
  std::string master_address = "127.0.0.1";
  int master_port = 0;
};

class MH_API Launcher {
public:
  static constexpr Kind kKind = Kind::launcher;

  struct Args {};

  virtual ~Launcher();

  /// The world as this launcher's environment describes it; nothing if it did not start this
  /// process. Throws:  mh::Error if the environment is there in part
  [[nodiscard]] virtual std::optional<World> detect() const = 0;
};

} // namespace mh
