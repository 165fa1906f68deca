#pragma once
/// Where the dimensions of a tensor live, and how a tensor moves from one placement to another.
///
/// Per mesh axis a tensor is one of four things:
///
///   identical   same value on every rank, same gradient on every rank
///   replicated  same value on every rank, each rank holds a part of the gradient
///   split(d)    dimension d is cut into equal slices, in rank order
///   partial     each rank holds a summand of the value
///
/// A model never says so itself: strategies supply rules (logical axis -> mesh axis) and `place`
/// derives the placement of any activation from its dimensions.

#include "megahost/axis.hpp"
#include "megahost/export.hpp"
#include "megahost/mesh.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mh {

class AttentionMethod;
class ExpertMethod;

enum class PlacementType : uint8_t { identical, replicated, split, partial };

/// How a tensor lies along one mesh axis; `dim` counts for split only.
struct Along {
  PlacementType type = PlacementType::identical;
  int8_t dim = 0;
  friend bool operator==(const Along&, const Along&) = default;
};

/// How a tensor lies along every mesh axis.
class Placement {
public:
  [[nodiscard]] Along operator[](MeshAxis axis) const { return along_[static_cast<size_t>(axis)]; }

  Along& operator[](MeshAxis axis) { return along_[static_cast<size_t>(axis)]; }

  friend bool operator==(const Placement&, const Placement&) = default;

private:
  std::array<Along, kMeshAxes> along_{};
};

/// "tp: split 0, cp: replicated"; "identical" if nothing else.
[[nodiscard]] MH_API std::string to_string(const Placement& placement);

/// How tokens are sharded over the ranks of a mesh axis.
enum class Sharding : uint8_t {
  blocks, ///< one piece each, in rank order
  zigzag, ///< two of twice as many pieces, one early and one late: causal attention is equal work
          ///< for all ranks
};

/// One line of a strategy: dimensions with this meaning are cut along this mesh axis.
struct Rule {
  LogicalAxis logical;
  MeshAxis mesh;
  Sharding sharding =
      Sharding::blocks; ///< counts for seq in the tier of tokens: which ones a rank sees
};

/// Neighbouring tokens of a sample.
struct TokenRun {
  int64_t first = 0, count = 0;
  friend bool operator==(const TokenRun&, const TokenRun&) = default;
};

/// The tokens of `size` that rank `index` of `ranks` holds, in the order in which it holds them.
///
/// Throws:  mh::Error if the pieces cannot be equal
[[nodiscard]] MH_API std::vector<TokenRun>
sharded_runs(Sharding sharding, int64_t size, int64_t ranks, int64_t index);

/// Rules apply in this order, and each mesh axis is used at most once per tensor. So with tensor
/// parallelism [seq, batch, heads] gives tp to heads, and with sequence parallelism, too,
/// [seq, batch, embed] leaves tp to seq: nothing else in any layer knows about it.
enum class Tier : uint8_t {
  features, ///< heads, kv_heads, mlp, vocab, expert: what a GEMM makes
  tokens,   ///< batch, seq: whose tokens a rank sees; inputs, labels and masks stop here
  between,  ///< seq between the regions that features are split in
};

/// The rules of all strategies of a run.
struct MH_API Rules {
  std::vector<Rule> features, tokens, between;

  /// How attention looks at tokens of other ranks, where a strategy splits samples (strategy.hpp).
  std::shared_ptr<const AttentionMethod> attention{};

  /// How tokens reach experts of other ranks, where a strategy shards experts (nn/experts.hpp).
  std::shared_ptr<const ExpertMethod> experts{};

  /// Derives the placement of an activation.
  ///
  /// Key and value heads that are fewer than the ranks of their mesh axis, and divide them, become
  /// replicated. Every other axis that is mapped must be divisible.
  ///
  /// Throws:  mh::Error naming the axis, its size and the degree
  [[nodiscard]] Placement
  place(const Dims& dims, const Mesh& mesh, Tier upto = Tier::between) const;

  /// Which of a sample's `seq` tokens this rank sees, in the order in which it holds them.
  [[nodiscard]] std::vector<TokenRun> token_runs(int64_t seq, const Mesh& mesh) const;

  /// Whether some strategy maps `logical` to `mesh_axis` in the features tier.
  [[nodiscard]] bool maps(LogicalAxis logical, MeshAxis mesh_axis) const;
};

/// This rank's sizes of a tensor of `dims` under `placement`.
[[nodiscard]] MH_API std::vector<int64_t>
local_sizes(const Dims& dims, const Placement& placement, const Mesh& mesh);

/// Moves a tensor to another placement, and its gradient back, with the collectives of this table:
///
/// | from -> to               | forward        | backward       |
/// |--------------------------|----------------|----------------|
/// | identical -> replicated  | none           | all-reduce     |
/// | split -> replicated      | all-gather     | reduce-scatter |
/// | split -> identical       | all-gather     | slice          |
/// | identical -> split       | slice          | all-gather     |
/// | partial -> identical     | all-reduce     | none           |
/// | partial -> replicated    | all-reduce     | all-reduce     |
/// | partial -> split         | reduce-scatter | all-gather     |
/// | replicated -> split      | slice          | zero-pad       |
/// | split a -> split b       | all-to-all     | all-to-all     |
///
/// Inner mesh axes are converted first (tp, then cp), so that both may cut the same dimension.
/// Throws:  mh::Error for any other pair, naming mesh axis and types
[[nodiscard]] MH_API at::Tensor
convert(const at::Tensor& tensor, const Placement& from, const Placement& to, const Mesh& mesh);

/// The two halves of `convert` without autograd, for Functions that overlap them with a GEMM.
[[nodiscard]] MH_API at::Tensor convert_forward(
    const at::Tensor& tensor, const Placement& from, const Placement& to, const Mesh& mesh
);
[[nodiscard]] MH_API at::Tensor convert_backward(
    const at::Tensor& gradient, const Placement& from, const Placement& to, const Mesh& mesh
);

} // namespace mh
