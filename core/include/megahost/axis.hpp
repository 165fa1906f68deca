#pragma once
/// Logical axes: what a dimension of a parameter or an activation means.
///
/// ```cpp
/// const mh::Axis seq = {mh::axis::seq, 4096}, batch = {mh::axis::batch, 1};
/// const mh::Dims hidden = {seq, batch, {mh::axis::embed, 8192}};
/// const mh::Dims queries = {seq, batch, {mh::axis::heads, 64, 128}};
/// ```
///
/// A model names its axes; parallel strategies say where an axis lives (placement.hpp). A plugin
/// may invent axes of its own: an axis that no strategy maps is simply not split.

#include <cstdint>
#include <string_view>
#include <vector>

namespace mh {

/// The name of a logical axis. Two axes are the same when their names are.
struct LogicalAxis {
  std::string_view name;
  friend constexpr bool operator==(LogicalAxis, LogicalAxis) = default;
};

namespace axis {
inline constexpr LogicalAxis vocab{"vocab"};           ///< entries of the vocabulary
inline constexpr LogicalAxis embed{"embed"};           ///< the residual stream
inline constexpr LogicalAxis heads{"heads"};           ///< query heads
inline constexpr LogicalAxis kv_heads{"kv_heads"};     ///< key and value heads
inline constexpr LogicalAxis head_dim{"head_dim"};     ///< elements of one head
inline constexpr LogicalAxis mlp{"mlp"};               ///< hidden units of a feed-forward
inline constexpr LogicalAxis expert{"expert"};         ///< experts of a mixture
inline constexpr LogicalAxis expert_mlp{"expert_mlp"}; ///< hidden units of one expert
inline constexpr LogicalAxis layers{"layers"};         ///< transformer blocks
inline constexpr LogicalAxis batch{"batch"};           ///< samples of a microbatch
inline constexpr LogicalAxis seq{"seq"};               ///< tokens of a sample
inline constexpr LogicalAxis position{"position"};     ///< entries of a position table
} // namespace axis

/// One dimension of a tensor: `size` units of `width` elements. Only whole units are ever split, so
/// a dimension of 64 heads of 128 elements is {heads, 64, 128}, never {heads, 8192}.
struct Axis {
  LogicalAxis logical;
  int64_t size = 1;
  int64_t width = 1;

  [[nodiscard]] constexpr int64_t elements() const { return size * width; }
};

/// The dimensions of a tensor, outermost first. Sizes are global: of the whole, unsplit tensor.
using Dims = std::vector<Axis>;

} // namespace mh
