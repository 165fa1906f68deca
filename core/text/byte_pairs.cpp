#include "core/text/byte_pairs.hpp"

#include "core/text/utf8.hpp"
#include "core/text/vocabulary_file.hpp"

#include <algorithm>
#include <functional>

namespace mh::text {

namespace {

constexpr size_t kFew = 24; // ids that are looked through for each merge

/// Merges few ids: the lowest rank of all is looked for again and again.
void merge_few(const PairMap& merges, std::vector<int32_t>& ids) {
  std::array<Merge, kFew> next{}; // merge of each id with the one after it
  size_t count = ids.size();
  for (size_t i = 0; i + 1 < count; ++i) {
    next[i] = merges.find(ids[i], ids[i + 1]);
  }
  while (count > 1) {
    size_t best = count;
    uint32_t rank = UINT32_MAX; // that of kNoId
    for (size_t i = 0; i + 1 < count; ++i) {
      if (static_cast<uint32_t>(next[i].rank) < rank) {
        rank = static_cast<uint32_t>(next[i].rank);
        best = i;
      }
    }
    if (best == count) {
      break;
    }
    ids[best] = next[best].id;
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      ids[i] = ids[i + 1];
      next[i - 1] = next[i];
    }
    next[count - 1] = {};
    next[best] = best + 1 < count ? merges.find(ids[best], ids[best + 1]) : Merge();
    if (best > 0) {
      next[best - 1] = merges.find(ids[best - 1], ids[best]);
    }
  }
  ids.resize(count);
}

/// Merges many ids: a heap of candidates over a list.
class LongMerge {
public:
  LongMerge(const PairMap& merges, const std::vector<int32_t>& ids)
      : merges_(merges) {
    MH_ASSERT(ids.size() < INT32_MAX, "a word of 2 GB");
    const auto count = static_cast<int32_t>(ids.size());
    for (int32_t i = 0; i < count; ++i) {
      symbols_.push_back({ids[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : kNoId, true});
    }
    for (int32_t i = 0; i < count; ++i) {
      offer(i);
    }
  }

  void run() {
    while (!heap_.empty()) {
      std::ranges::pop_heap(heap_, std::greater());
      const auto rank = static_cast<int32_t>(heap_.back() >> 32);
      const auto place = static_cast<int32_t>(heap_.back() & 0xFFFFFFFF);
      heap_.pop_back();
      Symbol& left = symbols_[static_cast<size_t>(place)];
      if (!left.there || left.after == kNoId) {
        continue; // merged away meanwhile
      }
      Symbol& right = symbols_[static_cast<size_t>(left.after)];
      const Merge merge = merges_.find(left.id, right.id);
      if (merge.rank != rank) {
        continue; // another pair meanwhile
      }
      left.id = merge.id;
      left.after = right.after;
      right.there = false;
      if (left.after != kNoId) {
        symbols_[static_cast<size_t>(left.after)].before = place;
      }
      offer(place);
      if (left.before != kNoId) {
        offer(left.before);
      }
    }
  }

  void write(std::vector<int32_t>& ret_ids) const {
    ret_ids.clear();
    for (const Symbol& symbol : symbols_) {
      if (symbol.there) {
        ret_ids.push_back(symbol.id);
      }
    }
  }

private:
  struct Symbol {
    int32_t id;
    int32_t before, after; // places of the neighbours, or kNoId
    bool there;
  };

  void offer(int32_t place) {
    const Symbol& left = symbols_[static_cast<size_t>(place)];
    if (left.after == kNoId) {
      return;
    }
    const Merge merge = merges_.find(left.id, symbols_[static_cast<size_t>(left.after)].id);
    if (merge.rank != kNoId) {
      heap_.push_back(static_cast<uint64_t>(merge.rank) << 32 | static_cast<uint32_t>(place));
      std::ranges::push_heap(heap_, std::greater());
    }
  }

  const PairMap& merges_;
  std::vector<Symbol> symbols_;
  std::vector<uint64_t> heap_; // rank and place of the left one
};

} // namespace

void merge_pairs(const PairMap& merges, std::vector<int32_t>& ids) {
  if (ids.size() <= kFew) {
    merge_few(merges, ids);
    return;
  }
  LongMerge merge(merges, ids);
  merge.run();
  merge.write(ids);
}

void add_pairs_by_rank(
    const std::vector<std::string>& tokens, const TokenMap& ids, PairMap& merges
) {
  merges.reserve(4 * tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    if (ids.find(token) != static_cast<int32_t>(id)) {
      continue; // a special token
    }
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const int32_t left = ids.find(token.substr(0, cut));
      const int32_t right = left == kNoId ? kNoId : ids.find(token.substr(cut));
      if (right != kNoId) {
        merges(left, right) = {static_cast<int32_t>(id), static_cast<int32_t>(id)};
      }
    }
  }
}

void BytePairModel::encode(std::string_view word, std::vector<int32_t>& ret_ids) const {
  if (whole_words) {
    if (const int32_t id = tokens.find(word); id != kNoId) {
      ret_ids.push_back(id);
      return;
    }
  }
  std::vector<int32_t> ids(word.size());
  std::ranges::transform(word, ids.begin(), [&](char c) {
    return bytes[static_cast<unsigned char>(c)];
  });
  merge_pairs(merges, ids);
  ret_ids.insert(ret_ids.end(), ids.begin(), ids.end());
}

void CharacterPairModel::encode(std::string_view word, std::vector<int32_t>& ret_ids) const {
  if (whole_words) {
    if (const int32_t id = tokens.find(word); id != kNoId) {
      ret_ids.push_back(id);
      return;
    }
  }
  std::vector<int32_t> ids;
  bool waiting = false; // an unknown character whose id is not written yet
  for_each_character(word, [&](char32_t, std::string_view character) {
    const bool first = character.data() == word.data();
    const bool last = character.data() + character.size() == word.data() + word.size();
    std::string decorated;
    std::string_view unit = character;
    if ((!first && !prefix.empty()) || (last && !suffix.empty())) {
      decorated = (first ? "" : prefix) + std::string(character) + (last ? suffix : "");
      unit = decorated;
    }
    if (const int32_t id = tokens.find(unit); id != kNoId) {
      if (waiting) {
        ids.push_back(*unknown);
        waiting = false;
      }
      ids.push_back(id);
    } else if (byte_tokens && append_byte_tokens(*byte_tokens, unit, ids)) {
      return; // an unknown character that waits is written behind these, as the reference does it
    } else if (unknown) {
      if (waiting && !fuse_unknown) {
        ids.push_back(*unknown);
      }
      waiting = true;
    } else if (!unknown_token.empty()) {
      refuse_word(character, unknown_token);
    }
  });
  if (waiting) {
    ids.push_back(*unknown);
  }
  merge_pairs(merges, ids);
  ret_ids.insert(ret_ids.end(), ids.begin(), ids.end());
}

} // namespace mh::text
