#include "bins.hpp"

#include <megahost/shuffle.hpp>

#include <algorithm>
#include <deque>

namespace mh::indexed {
namespace {

constexpr size_t kOpen = 256;

/// Whether a label of a piece counts.
bool has_label(const IndexedDataset& counts, const DocumentRange& piece) {
  std::vector<int64_t> labels(piece.count - 1);
  counts.read(piece.document, piece.first + 1, labels);
  return std::ranges::any_of(labels, [](int64_t count) { return count != 0; });
}

/// Pieces of at most seq + 1 tokens, at least two: a token and its label.
std::vector<DocumentRange> pieces_of(
    const IndexedDataset& dataset,
    uint64_t first,
    uint64_t last,
    uint64_t seq,
    const IndexedDataset* counts
) {
  std::vector<DocumentRange> pieces;
  for (uint64_t document = first; document < last; ++document) {
    const uint64_t length = dataset.length(document);
    const bool cut = length > seq + 1;
    for (uint64_t begin = 0; begin + 1 < length; begin += seq) {
      const DocumentRange piece{document, begin, std::min(seq + 1, length - begin)};
      if (!cut || counts == nullptr || has_label(*counts, piece)) {
        pieces.push_back(piece);
      }
    }
  }
  return pieces;
}

/// For each piece the sample that it goes into.
std::vector<uint64_t> first_fit_of(const std::vector<DocumentRange>& pieces, uint64_t seq) {
  struct Open {
    uint64_t number, room;
  };

  std::vector<uint64_t> samples;
  std::deque<Open> open;
  uint64_t opened = 0;
  for (const DocumentRange& piece : pieces) {
    const uint64_t needed = piece.count - 1;
    auto found = std::ranges::find_if(open, [&](const Open& one) { return one.room >= needed; });
    if (found == open.end()) {
      if (open.size() == kOpen) {
        open.pop_front();
      }
      found = open.insert(open.end(), {opened++, seq});
    }
    found->room -= needed;
    samples.push_back(found->number);
    if (found->room == 0) {
      open.erase(found);
    }
  }
  return samples;
}

} // namespace

Bins::Bins(
    const IndexedDataset& dataset,
    uint64_t first,
    uint64_t last,
    uint64_t seq,
    std::optional<uint64_t> key,
    bool first_fit,
    const IndexedDataset* counts
)
    : key_(key) {
  std::vector<DocumentRange> pieces = pieces_of(dataset, first, last, seq, counts);
  if (!first_fit) {
    pieces_ = std::move(pieces);
    for (uint64_t i = 0; i <= pieces_.size(); ++i) {
      begins_.push_back(i);
    }
    return;
  }
  if (key_) {
    std::vector<DocumentRange> order(pieces.size());
    for (uint64_t i = 0; i < pieces.size(); ++i) {
      order[i] = pieces[shuffled(i, pieces.size(), mix(*key_))];
    }
    pieces = std::move(order);
  }
  const std::vector<uint64_t> samples = first_fit_of(pieces, seq);
  begins_.resize(samples.empty() ? 1 : *std::ranges::max_element(samples) + 2);
  for (const uint64_t sample : samples) {
    ++begins_[sample + 1];
  }
  for (uint64_t i = 1; i < begins_.size(); ++i) {
    begins_[i] += begins_[i - 1];
  }
  std::vector<uint64_t> next = begins_;
  pieces_.resize(pieces.size());
  for (uint64_t i = 0; i < pieces.size(); ++i) {
    pieces_[next[samples[i]]++] = pieces[i];
  }
}

std::vector<DocumentRange> Bins::sample(uint64_t index) const {
  const uint64_t number = index % size();
  const uint64_t at = key_ ? shuffled(number, size(), mix(mix(*key_) + index / size())) : number;
  return {
      pieces_.begin() + static_cast<ptrdiff_t>(begins_[at]),
      pieces_.begin() + static_cast<ptrdiff_t>(begins_[at + 1])};
}

} // namespace mh::indexed
