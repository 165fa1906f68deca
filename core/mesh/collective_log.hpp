#pragma once
/// The last collectives of a rank, for the sentence that is said when one of them fails.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>

namespace mh {

class CollectiveLog {
public:
  /// Notes a collective that begins; `name` and `group` must outlive the log's use of them.
  void begin(const char* name, const std::string& group, const at::Tensor& tensor);

  /// The last ones, newest first: "#12 all-reduce in tp:0,1 of [4, 8] Float, #11 ...".
  [[nodiscard]] std::string text() const;

private:
  static constexpr size_t kKept = 4;
  static constexpr size_t kDims = 5;

  struct Entry {
    const char* name = nullptr;
    const std::string* group = nullptr;
    at::ScalarType dtype = at::kFloat;
    size_t dims = 0;
    std::array<int64_t, kDims> sizes{};
  };

  int64_t count_ = 0;
  std::array<Entry, kKept> entries_;
};

} // namespace mh
