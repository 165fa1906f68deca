#include "core/mesh/collective_log.hpp"

#include <algorithm>

namespace mh {

void CollectiveLog::begin(const char* name, const std::string& group, const at::Tensor& tensor) {
  Entry& entry = entries_[static_cast<size_t>(count_++) % kKept];
  entry.name = name;
  entry.group = &group;
  entry.dtype = tensor.scalar_type();
  entry.dims = std::min(static_cast<size_t>(tensor.dim()), kDims);
  std::copy_n(tensor.sizes().begin(), entry.dims, entry.sizes.begin());
}

std::string CollectiveLog::text() const {
  std::string text;
  for (int64_t i = count_ - 1; i >= std::max<int64_t>(0, count_ - static_cast<int64_t>(kKept));
       --i) {
    const Entry& entry = entries_[static_cast<size_t>(i) % kKept];
    text += (text.empty() ? "#" : ", before it #") + std::to_string(i + 1) + " " + entry.name +
            " in " + *entry.group + " of [";
    for (size_t d = 0; d < entry.dims; ++d) {
      text += (d == 0 ? "" : ", ") + std::to_string(entry.sizes[d]);
    }
    text += std::string("] ") + at::toString(entry.dtype);
  }
  return text;
}

} // namespace mh
