#include "documents.hpp"

#include <megahost/shuffle.hpp>

#include <algorithm>
#include <numeric>

namespace mh::text {

TokenStore::TokenStore(int64_t vocab) {
  if (vocab > 65536) {
    ids_.emplace<std::vector<uint32_t>>();
  } else if (vocab > 256) {
    ids_.emplace<std::vector<uint16_t>>();
  }
}

void TokenStore::append(std::span<const int32_t> ids) {
  std::visit(
      [&](auto& stored) {
        using Id = typename std::decay_t<decltype(stored)>::value_type;
        const size_t start = stored.size();
        stored.resize(start + ids.size());
        std::ranges::transform(ids, stored.begin() + static_cast<ptrdiff_t>(start), [](int32_t id) {
          return static_cast<Id>(id);
        });
      },
      ids_
  );
}

uint64_t TokenStore::size() const {
  return std::visit([](const auto& stored) { return uint64_t{stored.size()}; }, ids_);
}

void TokenStore::read(uint64_t begin, std::span<int64_t> ret_ids) const {
  std::visit(
      [&](const auto& stored) {
        std::copy_n(
            stored.begin() + static_cast<ptrdiff_t>(begin), ret_ids.size(), ret_ids.begin()
        );
      },
      ids_
  );
}

std::vector<Document> cut(const std::vector<Document>& documents, uint64_t limit) {
  std::vector<Document> pieces;
  for (const Document& document : documents) {
    const uint64_t count = std::max<uint64_t>(1, (document.size() + limit - 1) / limit);
    for (uint64_t i = 0; i < count; ++i) {
      pieces.push_back(
          {count == 1 ? document.name : document.name + "#" + std::to_string(i),
           document.begin + document.size() * i / count,
           document.begin + document.size() * (i + 1) / count}
      );
    }
  }
  return pieces;
}

SplitText::SplitText(const std::vector<Document>& documents) {
  uint64_t end = 0;
  for (const Document& document : documents) {
    if (pieces_.empty() || document.begin != end) {
      pieces_.push_back({size_, document.begin});
    }
    end = document.end;
    size_ += document.size();
  }
}

void SplitText::read(const TokenStore& store, uint64_t begin, std::span<int64_t> ret_ids) const {
  auto piece = std::ranges::upper_bound(pieces_, begin, {}, &Piece::at) - 1;
  while (!ret_ids.empty()) {
    const uint64_t piece_end = piece + 1 == pieces_.end() ? size_ : (piece + 1)->at;
    const uint64_t count = std::min<uint64_t>(piece_end - begin, ret_ids.size());
    store.read(piece->begin + (begin - piece->at), ret_ids.first(count));
    ret_ids = ret_ids.subspan(count);
    begin += count;
    ++piece;
  }
}

std::array<SplitText, 3> split_documents(
    const std::vector<Document>& documents, const std::array<double, 3>& shares, uint64_t at_least
) {
  std::vector<std::pair<uint64_t, size_t>> order; // hash, number
  uint64_t total = 0;
  for (size_t i = 0; i < documents.size(); ++i) {
    order.emplace_back(hash_text(documents[i].name), i);
    total += documents[i].size();
  }
  std::ranges::sort(order);

  std::vector<size_t> splits; // that get something, the one that takes the rest last
  for (size_t split : {1, 2, 0}) {
    if (shares[split] > 0) {
      splits.push_back(split);
    }
  }
  std::array<std::vector<size_t>, 3> numbers;
  size_t next = 0;
  for (size_t split : splits) {
    const double target = shares[split] * double(total);
    double taken = 0;
    for (; next < order.size(); ++next) {
      const double size = double(documents[order[next].second].size());
      const bool enough = taken >= double(at_least) && taken + size / 2 > target;
      if (enough && split != splits.back()) {
        break;
      }
      numbers[split].push_back(order[next].second);
      taken += size;
    }
  }

  const auto slice = [&](std::vector<size_t>& chosen) {
    std::ranges::sort(chosen);
    std::vector<Document> list;
    for (size_t number : chosen) {
      list.push_back(documents[number]);
    }
    return SplitText(list);
  };
  return {slice(numbers[0]), slice(numbers[1]), slice(numbers[2])};
}

} // namespace mh::text
