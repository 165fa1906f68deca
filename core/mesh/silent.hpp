#pragma once
/// Ranks that are not there: collectives that end at once, for steps on the Meta device, where only
/// shapes count. Host memory that is exchanged comes back as if all ranks had said the same.

#include "megahost/mesh.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
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

struct SilentOptions {
  std::string_view order = "tp-cp-ep-dp-pp"; ///< of the ranks
  CollectiveListener* listener = nullptr;    ///< outlives the mesh; null: no one is told
  bool answers = true; ///< false: what is gathered stays as it was, and takes no time
};

/// The place of `rank` in a mesh of that shape without the others.
[[nodiscard]] Mesh alone(const MeshShape& shape, int64_t rank, const SilentOptions& options = {});

} // namespace mh
