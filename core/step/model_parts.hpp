#pragma once
/// Which part of the model an operation belongs to, forward and backward, from LibTorch's
/// callbacks.

#include <ATen/record_function.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mh {

/// What a person knows an operation by: "LinearFunction" for
/// "torch::autograd::CppNode<mh::(anonymous namespace)::LinearFunction>".
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

  /// What begins on the calling thread, and where it is.
  Place begin(const at::RecordFunction& function);

  /// What began last on the calling thread ends; false if nothing has begun.
  bool end();

  void clear() { threads_.clear(); }

private:
  struct Thread {
    std::vector<Place> open;
    /// Which part nodes belong to that were made from this sequence number on.
    std::map<uint64_t, std::string> parts;
  };

  [[nodiscard]] std::string part_of_node(const at::RecordFunction& function) const;

  std::map<uint64_t, Thread> threads_;
};

} // namespace mh
