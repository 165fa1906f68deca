#pragma once
/// The part of the model that an operation belongs to, forward and backward, from LibTorch's
/// callbacks.

#include <ATen/record_function.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mh {

/// A readable name of an operation: "LinearFunction" for "torch::autograd::CppNode<mh::(anonymous
/// namespace)::LinearFunction>".
[[nodiscard]] std::string operation_name(std::string name);

/// Follows the scopes that blocks open (RECORD_USER_SCOPE); a backward node belongs to the part
/// that made it. The caller keeps threads apart in time (a mutex).
class PartTracker {
public:
  struct Place {
    std::string part; ///< "layers.1/attention"
    bool backward = false;
    bool scope = false; ///< it is a part itself
  };

  /// Begins an operation on the calling thread, and returns its place.
  Place begin(const at::RecordFunction& function);

  /// Ends the operation that began last on the calling thread; false if none has begun.
  bool end();

  void clear() { threads_.clear(); }

private:
  struct Thread {
    std::vector<Place> open;
    /// The part that nodes belong to that were made from this sequence number on.
    std::map<uint64_t, std::string> parts;
  };

  [[nodiscard]] std::string part_of_node(const at::RecordFunction& function) const;

  std::map<uint64_t, Thread> threads_;
};

} // namespace mh
