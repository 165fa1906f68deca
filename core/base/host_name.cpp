#include "core/base/host_name.hpp"

#include <unistd.h>

#include <array>

namespace mh {

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string rank_on(int64_t rank, const std::string& host) {
  return "rank " + std::to_string(rank) + " on " + host;
}

} // namespace mh
