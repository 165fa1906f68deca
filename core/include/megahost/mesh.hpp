#pragma once
/// The two meshes that lie over the ranks, and the process groups along their axes.
///
/// dense:  pp x dp x cp x tp        expert:  pp x edp x ep x etp        (tp cp dp = etp ep edp)
///
/// ep never multiplies the world: experts are sharded over ranks that the dense mesh uses for tp,
/// cp and dp. All groups are made at start, in one order, and looked up afterwards.

#include "megahost/export.hpp"
#include "megahost/mesh_shape.hpp"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace c10d {
class Backend;
class Work;
} // namespace c10d

namespace mh {

enum class Reduce : uint8_t { sum, max, min };

class CollectiveLog;

/// A transfer or a collective in flight. It holds the buffers that it reads and writes; they may be
/// used, and what is sent changed, only after `wait`.
class MH_API Pending {
public:
  Pending(); ///< nothing is in flight

  explicit Pending(at::Tensor result)
      : Pending() {
    result_ = std::move(result);
  }

  ~Pending();
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;

  /// Waits (on a GPU: makes the current stream wait) and lets go of the buffers.
  ///
  /// Returns: the tensor received, reduced, gathered or scattered; the same one when called again
  /// Throws:  mh::Error (exit code 4) naming the operation if the others are gone or time out
  at::Tensor wait();

  /// Whether it is known to be over; Gloo knows only once it was waited for.
  [[nodiscard]] bool done() const;

private:
  friend class Group;
  struct Operation;
  std::unique_ptr<Operation> operation_; // null once it was waited for
  at::Tensor result_;
};

/// Some ranks that take part in collectives together. A group of one rank communicates nothing.
///
/// Throws:  mh::Error (exit code 4) from every collective if a member is gone or does not answer in
///          time, with the last collectives of this rank
class MH_API Group {
public:
  Group() = default;
  Group(
      std::string name,
      std::vector<int64_t> members,
      int64_t index,
      c10::intrusive_ptr<c10d::Backend> backend,
      std::shared_ptr<CollectiveLog> log = nullptr
  );
  Group(const Group&);
  Group& operator=(const Group&);
  ~Group();

  [[nodiscard]] const std::string& name() const { return name_; }

  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(members_.size()); }

  [[nodiscard]] int64_t index() const { return index_; } ///< this rank's place among the members

  [[nodiscard]] const std::vector<int64_t>& members() const { return members_; }

  /// Reduces `tensor` (contiguous) in place over the members.
  void all_reduce(at::Tensor tensor, Reduce reduce = Reduce::sum) const;

  /// Concatenates the members' tensors along `dim`, in member order.
  [[nodiscard]] at::Tensor all_gather(const at::Tensor& tensor, int64_t dim) const;

  /// Sums over the members and returns this member's slice along `dim`.
  [[nodiscard]] at::Tensor reduce_scatter(const at::Tensor& tensor, int64_t dim) const;

  /// Splits along `split`, exchanges, and concatenates what arrives along `concat`.
  [[nodiscard]] at::Tensor
  all_to_all(const at::Tensor& tensor, int64_t split, int64_t concat) const;

  /// Exchanges slices of dimension 0 as long as told: `send[i]` rows go to member i, what
  /// arrives of `receive[i]` rows from each is concatenated. Tensors of no rows take part, too.
  [[nodiscard]] at::Tensor all_to_all_rows(
      const at::Tensor& tensor,
      const std::vector<int64_t>& send,
      const std::vector<int64_t>& receive
  ) const;

  /// All-reduce, all-gather and reduce-scatter in flight: they overlap with what is computed until
  /// `Pending::wait`. All members start their operations in one order; they may wait in any. The
  /// result goes to `into` (contiguous; `dim` is 0 then) if that is given; a reduce-scatter's may
  /// be this member's slice of what it sends.
  [[nodiscard]] Pending start_all_reduce(at::Tensor tensor, Reduce reduce = Reduce::sum) const;
  [[nodiscard]] Pending
  start_all_gather(const at::Tensor& tensor, int64_t dim, at::Tensor into = {}) const;
  [[nodiscard]] Pending
  start_reduce_scatter(const at::Tensor& tensor, int64_t dim, at::Tensor into = {}) const;

  /// Posts a transfer of a contiguous tensor to member `to`, or from member `from` into `into`.
  ///
  /// The operations between two members form one queue: the n-th of one meets the n-th of the
  /// other, a send there a receive here, whatever the tensors (NCCL's rule; other transports are
  /// milder).
  [[nodiscard]] Pending send(const at::Tensor& tensor, int64_t to) const;
  [[nodiscard]] Pending receive(at::Tensor into, int64_t from) const;

  /// This member's slice along `dim`; no communication.
  [[nodiscard]] at::Tensor slice(const at::Tensor& tensor, int64_t dim) const;

private:
  struct Request {
    const char* name;
    at::Tensor input, result;
    int64_t dim = 0;   // where the result's dimension 0 belongs
    int64_t peer = -1; // the other member of a transfer
  };

  using Start = std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>;
  [[nodiscard]] Pending start(const Request& request, const Start& start) const;

  std::string name_ = "self";
  std::vector<int64_t> members_ = {0};
  int64_t index_ = 0;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::shared_ptr<CollectiveLog> log_; // the rank's: all its groups share it
  size_t number_ = 0;                  // the group's number in the log
};

/// Makes the transport of one group; called on every rank for every group in the same order, also
/// for groups that this rank is not in (`index` is -1 then, and the result is not used).
using MakeBackend = std::function<c10::intrusive_ptr<c10d::Backend>(
    const std::string& name, const std::vector<int64_t>& members, int64_t index
)>;

/// This rank's place in both meshes.
///
/// Throws:  mh::Error if the degrees do not divide one another
/// Source:  Megatron Core `RankGenerator` for the default order (tp fastest, pp slowest)
class MH_API Mesh {
public:
  /// A world of one rank.
  Mesh();
  Mesh(
      const MeshShape& shape,
      int64_t rank,
      const MakeBackend& make_backend,
      std::string_view order = "tp-cp-ep-dp-pp"
  );

  [[nodiscard]] int64_t world() const { return shape_.world(); }

  [[nodiscard]] int64_t rank() const { return rank_; }

  [[nodiscard]] const MeshShape& shape() const { return shape_; }

  [[nodiscard]] int64_t size(MeshAxis axis) const { return group(axis).size(); }

  [[nodiscard]] int64_t coordinate(MeshAxis axis) const { return group(axis).index(); }

  /// The ranks that differ from this one along `axis` only.
  [[nodiscard]] const Group& group(MeshAxis axis) const;

  /// A sub-axis: the block of `inner` neighbours along `axis` that this rank is in (kv heads fewer
  /// than tp: the ranks that hold the same head). `inner` divides the axis.
  [[nodiscard]] const Group& group(MeshAxis axis, int64_t inner) const;

  /// All ranks.
  [[nodiscard]] const Group& all() const { return all_; }

  /// The collectives of this rank.
  [[nodiscard]] const std::shared_ptr<CollectiveLog>& log() const { return log_; }

private:
  MeshShape shape_;
  int64_t rank_ = 0;
  std::shared_ptr<CollectiveLog> log_;
  Group all_;
  std::array<Group, kMeshAxes> groups_;
  std::array<std::vector<Group>, kMeshAxes> blocks_; // by divisor of the axis' size, ascending
};

} // namespace mh
