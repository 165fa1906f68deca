#pragma once
/// Ranks that are not there: collectives that end at once, for steps on the Meta device, where only
/// shapes count. Host memory that is exchanged comes back as if all ranks had said the same.

#include "megahost/export.hpp"
#include "megahost/mesh.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// A group whose other members are not there.
struct SilentGroup {
  std::string axis;             ///< "tp", or "world"
  std::vector<int64_t> members; ///< ranks
};

/// Is told what the ranks that are not there were asked for.
class CollectiveListener {
public:
  virtual ~CollectiveListener() = default;

  /// A collective ("all-reduce", "all-gather", "reduce-scatter", "all-to-all") or a transfer
  /// ("send", "receive") begins on `input`. Returns its number, by which it is waited for.
  virtual int64_t
  began(const SilentGroup& group, const char* name, const at::Tensor& input, int64_t peer) = 0;
  virtual void waited(int64_t number) = 0;
};

/// A collective that a group was asked for, and the destination of its result.
struct SilentCollective {
  const SilentGroup& group;
  std::string_view name;    ///< name as for CollectiveListener::began
  std::string_view reduce;  ///< "sum", "max" or "min", where it reduces
  at::Tensor input, output; ///< a transfer has one of them
  int64_t peer = -1;        ///< the other member of a transfer
};

struct SilentOptions {
  std::string_view order = "tp-cp-ep-dp-pp"; ///< order of the mesh axes in rank numbers
  CollectiveListener* listener = nullptr;    ///< outlives the mesh; null: no one is told
  bool answers = true; ///< false: what is gathered stays as it was, and takes no time
  /// Writes what the ranks would have answered, and says whether it has; empty: as said above.
  std::function<bool(const SilentCollective&)> compute{};
};

/// The place of `rank` in a mesh of that shape without the others.
[[nodiscard]] MH_API Mesh
alone(const MeshShape& shape, int64_t rank, const SilentOptions& options = {});

} // namespace mh
