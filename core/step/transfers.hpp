#pragma once
/// The tensors that a pipeline stage sends to the others and receives from them.

#include "megahost/mesh.hpp"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

namespace mh {

/// Tensors on their way to this stage.
struct Arrival {
  int64_t from = -1; ///< stage; -1: nothing comes from another
  int64_t number = 0;
  std::vector<Pending> tensors{};
};

/// The tensors that this stage passes on to itself.
[[nodiscard]] Arrival from_here(std::vector<at::Tensor> tensors);

/// Posts transfers and lets go of what was sent as soon as that is known to be over: the transfers
/// between two stages end in the order in which they were posted, so when one has arrived, all that
/// were posted before it have ended.
class Transfers {
public:
  /// The group must outlive this. `most_ahead` bounds the sends in flight to one stage.
  Transfers(const Group& stages, size_t most_ahead)
      : stages_(stages)
      , most_ahead_(most_ahead) {}

  /// Posts contiguous tensors; waits only where `most_ahead` are in flight to that stage.
  void send(int64_t to, const std::vector<at::Tensor>& tensors);

  /// Posts room for what that stage sends.
  [[nodiscard]] Arrival receive(int64_t from, const std::vector<at::Tensor>& room);

  /// Waits for the tensors of an arrival.
  [[nodiscard]] std::vector<at::Tensor> wait(Arrival arrival);

  /// Waits until everything sent is gone.
  void finish();

private:
  struct Sent {
    int64_t number = 0;
    std::vector<Pending> tensors;
  };

  struct Peer {
    int64_t posted = 0;
    std::deque<Sent> sent;

    void release_oldest();
  };

  const Group& stages_;
  size_t most_ahead_;
  std::map<int64_t, Peer> peers_;
};

} // namespace mh
