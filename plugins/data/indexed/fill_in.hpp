#pragma once
/// Fill-in-the-middle: a document's middle is moved to its end, so that a model learns to fill
/// gaps.

#include <cstdint>
#include <vector>

namespace mh::indexed {

struct FillIn {
  double rate = 0;                            ///< share of the documents
  double spm_rate = 0;                        ///< share of those whose suffix comes first
  int64_t prefix = 0, middle = 0, suffix = 0; ///< ids
};

/// The ids of a document, or of the part of it in a sample, cut at two places into prefix, middle
/// and suffix, become as many ids:
///
///     PREFIX prefix SUFFIX suffix MIDDLE middle    or, suffix first,
///     PREFIX SUFFIX suffix MIDDLE prefix middle
///
/// The suffix loses its last three ids to the new ones; one with less than three leaves all as it
/// is. `mask`, a number for each id, goes along; the new ids have 1.
///
/// key:     of this document in this sample; the same key gives the same ids
/// Source:  arXiv:2207.14255, section 3, on tokens
void fill_in(
    const FillIn& how, uint64_t key, std::vector<int64_t>& ids, std::vector<int64_t>& mask
);

} // namespace mh::indexed
