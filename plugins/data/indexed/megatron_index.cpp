#include "megatron_index.hpp"

#include "legacy_random.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace mh::indexed {
namespace {

template <class T>
T element(std::span<const std::byte> bytes, uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

std::vector<int32_t>
document_order(const IndexTerms& terms, const IndexSizes& sizes, RandomState& ret_random) {
  const uint64_t each = terms.last - terms.first;
  std::vector<int32_t> order(static_cast<uint64_t>(sizes.epochs) * each);
  for (uint64_t begin = 0; begin < order.size(); begin += each) {
    std::iota(
        order.begin() + static_cast<ptrdiff_t>(begin),
        order.begin() + static_cast<ptrdiff_t>(begin + each),
        static_cast<int32_t>(terms.first)
    );
  }
  const std::span<int32_t> all(order);
  const uint64_t together = all.size() - (sizes.before_last ? each : 0);
  ret_random.shuffle(all.first(together));
  ret_random.shuffle(all.subspan(together));
  return order;
}

/// helpers.cpp, build_sample_idx: T is the type in which it counts.
template <class T>
std::vector<T> sample_begins(
    const IndexTerms& terms,
    const IndexSizes& sizes,
    std::span<const int32_t> lengths,
    std::span<const int32_t> documents
) {
  const T extra = terms.extra_token ? 1 : 0;
  std::vector<T> begins{0, 0};
  begins.reserve(2 * (static_cast<size_t>(sizes.samples) + 1));
  T place = 0, offset = 0;
  for (int64_t i = 0; i < sizes.samples; ++i) {
    for (int64_t wanted = terms.seq + extra; wanted > 0;) {
      const T document = lengths[static_cast<size_t>(documents[static_cast<size_t>(place)])];
      const T left = document - offset;
      if (wanted <= left) {
        offset += static_cast<T>(wanted) - extra;
        break;
      }
      wanted -= left;
      if (static_cast<size_t>(place) + 1 == documents.size()) { // a sample that is not full
        offset = document - extra;
        break;
      }
      ++place;
      offset = 0;
    }
    begins.push_back(place);
    begins.push_back(offset);
  }
  return begins;
}

template <class T>
std::vector<T> sample_order(const IndexSizes& sizes, RandomState& ret_random) {
  std::vector<T> order(static_cast<size_t>(sizes.samples));
  std::iota(order.begin(), order.end(), T{0});
  const std::span<T> all(order);
  const auto together = static_cast<size_t>(sizes.before_last.value_or(sizes.samples));
  ret_random.shuffle(all.first(together));
  ret_random.shuffle(all.subspan(together));
  return order;
}

} // namespace

int64_t IndexArray::operator[](uint64_t index) const {
  switch (type_) {
  case Type::int32:
    return element<int32_t>(bytes_, index);
  case Type::uint32:
    return element<uint32_t>(bytes_, index);
  case Type::int64:
    break;
  }
  return element<int64_t>(bytes_, index);
}

std::optional<IndexSizes> index_sizes(const IndexTerms& terms, int64_t tokens) {
  const int64_t extra = terms.extra_token ? 1 : 0;
  if (tokens <= 0) {
    return std::nullopt;
  }
  IndexSizes sizes;
  if (terms.samples) {
    const int64_t wanted = *terms.samples * terms.seq + extra;
    sizes.epochs = std::max<int64_t>(1, (wanted + tokens - 1) / tokens);
  }
  if (sizes.epochs > 1) {
    const int64_t before_last = ((sizes.epochs - 1) * tokens - extra) / terms.seq;
    const int64_t of_last = *terms.samples - before_last;
    const int64_t of_epoch = (tokens - extra) / terms.seq;
    if (of_last < static_cast<int64_t>(0.80 * static_cast<double>(of_epoch))) {
      sizes.before_last = before_last;
    }
  }
  const int64_t usable = sizes.epochs * tokens - extra;
  sizes.samples = terms.drop_last_partial
                      ? usable / terms.seq
                      // in float32, as there: beyond 2^24 tokens it is not exact
                      : static_cast<int64_t>(
                            std::ceil(static_cast<float>(usable) / static_cast<float>(terms.seq))
                        );
  return sizes.samples > 0 ? std::optional(sizes) : std::nullopt;
}

MegatronIndex
make_index(const IndexTerms& terms, const IndexSizes& sizes, std::span<const int32_t> lengths) {
  constexpr auto kMostInt32 = static_cast<uint64_t>(std::numeric_limits<int32_t>::max());
  constexpr int64_t kMostUint32 = std::numeric_limits<uint32_t>::max();
  RandomState random(terms.seed);
  MegatronIndex index;
  const std::vector<int32_t> documents = document_order(terms, sizes, random);
  const int32_t longest = *std::ranges::max_element(lengths);
  index.samples = std::max<uint64_t>(documents.size(), static_cast<uint64_t>(longest)) > kMostInt32
                      ? IndexArray(sample_begins<int64_t>(terms, sizes, lengths, documents))
                      : IndexArray(sample_begins<int32_t>(terms, sizes, lengths, documents));
  index.documents = IndexArray(std::move(documents));
  index.shuffle = sizes.samples >= kMostUint32 - 1
                      ? IndexArray(sample_order<int64_t>(sizes, random))
                      : IndexArray(sample_order<uint32_t>(sizes, random));
  return index;
}

} // namespace mh::indexed
