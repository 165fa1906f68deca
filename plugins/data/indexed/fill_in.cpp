#include "fill_in.hpp"

#include <megahost/shuffle.hpp>

#include <algorithm>
#include <cstddef>

namespace mh::indexed {
namespace {

constexpr size_t kSentinels = 3;

double uniform(uint64_t word) {
  return static_cast<double>(word >> 11) * 0x1p-53;
}

/// The parts of `values` between two cuts in the order of a model that fills gaps.
void rearrange(
    std::vector<int64_t>& values,
    size_t low,
    size_t high,
    bool suffix_first,
    const int64_t (&sentinels)[kSentinels]
) {
  const auto at = [&](size_t index) { return values.begin() + static_cast<ptrdiff_t>(index); };
  const std::vector<int64_t> prefix(at(0), at(low)), middle(at(low), at(high));
  const std::vector<int64_t> suffix(at(high), at(values.size() - kSentinels));
  std::vector<int64_t> made{sentinels[0]};
  const auto add = [&](const std::vector<int64_t>& part) {
    made.insert(made.end(), part.begin(), part.end());
  };
  if (!suffix_first) {
    add(prefix);
  }
  made.push_back(sentinels[1]);
  add(suffix);
  made.push_back(sentinels[2]);
  if (suffix_first) {
    add(prefix);
  }
  add(middle);
  values = std::move(made);
}

} // namespace

void fill_in(
    const FillIn& how, uint64_t key, std::vector<int64_t>& ids, std::vector<int64_t>& mask
) {
  if (uniform(mix(key)) >= how.rate) {
    return;
  }
  const auto places = static_cast<uint64_t>(ids.size() + 1);
  const auto [low, high] = std::minmax({mix(key + 1) % places, mix(key + 2) % places});
  if (ids.size() - high < kSentinels) {
    return;
  }
  const bool suffix_first = uniform(mix(key + 3)) < how.spm_rate;
  rearrange(ids, low, high, suffix_first, {how.prefix, how.suffix, how.middle});
  rearrange(mask, low, high, suffix_first, {1, 1, 1});
}

} // namespace mh::indexed
