#include "megahost/optimizer.hpp"

#include <fnmatch.h>

#include <algorithm>

namespace mh {

bool is_matrix(const std::string& name, size_t dims, const std::vector<std::string>& others) {
  const bool experts_bias = name.ends_with(".bias"); // a vector of each
  return dims == 2 && !experts_bias && std::ranges::none_of(others, [&](const auto& pattern) {
           return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
         });
}

at::Tensor slice_of(const UpdateItem& item, const at::Tensor& whole) {
  at::Tensor slice = whole;
  for (size_t d = 0; d < item.offset.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    slice = slice.narrow(dim, item.offset[d], item.weight.size(dim));
  }
  return slice;
}

} // namespace mh
