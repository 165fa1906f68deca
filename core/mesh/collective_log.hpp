#pragma once
/// The last collectives and transfers of a rank, for the sentences that are said when one of them
/// fails.

#include "megahost/error.hpp"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mh {

/// One collective as a rank began it.
struct Collective {
  int64_t number = 0; ///< of all that the rank began, from 1
  std::string name;   ///< "all-reduce", "send to 1"
  std::string group, dtype;
  std::vector<int64_t> sizes;

  /// "#12 all-reduce in tp:0,1 of [4, 8] Float".
  [[nodiscard]] std::string text() const;
};

class CollectiveLog {
public:
  static constexpr size_t kDims = 5;

  struct Entry {
    int64_t number = 0; ///< from 1
    const char* name = nullptr;
    const std::string* group = nullptr;
    int64_t peer = -1; ///< of a transfer: the other member
    at::ScalarType dtype = at::kFloat;
    size_t dims = 0;
    std::array<int64_t, kDims> sizes{};

    [[nodiscard]] Collective collective() const;

    [[nodiscard]] std::string text() const { return collective().text(); }
  };

  /// Notes an operation that begins; `name` and `group` must outlive the log's use of them.
  const Entry&
  begin(const char* name, const std::string& group, const at::Tensor& tensor, int64_t peer = -1);

  /// The last ones, newest first.
  [[nodiscard]] std::vector<Collective> last() const;

  /// The same as text: "#12 all-reduce in tp:0,1 of [4, 8] Float, before it #11 ...".
  [[nodiscard]] std::string text() const;

private:
  static constexpr size_t kKept = 4;

  int64_t count_ = 0;
  std::array<Entry, kKept> entries_;
};

/// A collective failed: a rank is gone, does not answer, or is at another one.
class CollectiveError : public Error {
public:
  CollectiveError(const std::string& message, const std::string& hint, std::vector<Collective> last)
      : Error(message, hint, exit_code::communication)
      , last_(std::move(last)) {}

  /// This rank's last collectives, newest first.
  [[nodiscard]] const std::vector<Collective>& last() const { return last_; }

private:
  std::vector<Collective> last_;
};

/// What rank 0 says of a failure: which rank is at which collective, and which field differs.
/// `last` is each rank's newest one; a number of 0: the rank does not answer.
[[nodiscard]] std::string compare_collectives(const std::vector<Collective>& last);

} // namespace mh
