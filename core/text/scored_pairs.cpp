#include "core/text/scored_pairs.hpp"

#include "core/text/utf8.hpp"

#include <algorithm>
#include <unordered_map>

namespace mh::text {

namespace {

/// A heap of candidates over a list of symbols.
class ScoredMerge {
public:
  ScoredMerge(const ScoredPairModel& model, std::string_view word)
      : model_(model)
      , word_(word) {
    MH_ASSERT(word.size() < INT32_MAX, "a word of 2 GB");
    for (size_t at = 0; at < word.size();) {
      const size_t whole = model.whole.longest_prefix(word.substr(at)).first;
      const size_t length = whole > 0 ? whole : first_length(word.substr(at));
      const auto place = static_cast<int32_t>(symbols_.size());
      symbols_.push_back({at, length, place - 1, place + 1, whole > 0});
      at += length;
    }
    symbols_.back().after = kNoId;
    for (size_t i = 0; i < symbols_.size(); ++i) {
      offer(static_cast<int32_t>(i));
    }
  }

  void run() {
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end());
      const Candidate best = heap_.back();
      heap_.pop_back();
      Symbol& left = symbols_[static_cast<size_t>(best.place)];
      if (left.length == 0 || left.after == kNoId) {
        continue; // merged away meanwhile
      }
      Symbol& right = symbols_[static_cast<size_t>(left.after)];
      if (left.length + right.length != best.length) {
        continue; // another pair meanwhile
      }
      left.length = best.length;
      left.after = right.after;
      right.length = 0;
      if (left.after != kNoId) {
        symbols_[static_cast<size_t>(left.after)].before = best.place;
      }
      offer(left.before);
      offer(best.place);
    }
  }

  /// Calls `take` with each symbol's text and id (kNoId: unknown).
  template <class Take>
  void write(Take take) const {
    for (const Symbol& symbol : symbols_) {
      if (symbol.length > 0) {
        write_text(word_.substr(symbol.begin, symbol.length), take);
      }
    }
  }

private:
  struct Symbol {
    size_t begin, length;  // 0: merged into the one before
    int32_t before, after; // places of the neighbours, or kNoId
    bool whole;
  };

  struct Candidate {
    float score;
    int32_t place; // place of the left one
    size_t length; // length of both together

    [[nodiscard]] bool operator<(const Candidate& other) const {
      return score != other.score ? score < other.score : place > other.place;
    }
  };

  void offer(int32_t place) {
    if (place == kNoId || symbols_[static_cast<size_t>(place)].after == kNoId) {
      return;
    }
    const Symbol& left = symbols_[static_cast<size_t>(place)];
    const Symbol& right = symbols_[static_cast<size_t>(left.after)];
    if (left.whole || right.whole) {
      return;
    }
    const std::string_view both = word_.substr(left.begin, left.length + right.length);
    const int32_t id = model_.pieces.find(both);
    if (id == kNoId) {
      return;
    }
    heap_.push_back({model_.scores[static_cast<size_t>(id)], place, both.size()});
    std::push_heap(heap_.begin(), heap_.end());
    if (model_.unused[static_cast<size_t>(id)]) {
      cuts_[both] = left.length;
    }
  }

  template <class Take>
  void write_text(std::string_view text, Take take) const {
    const int32_t id = model_.pieces.find(text);
    const auto cut =
        id != kNoId && model_.unused[static_cast<size_t>(id)] ? cuts_.find(text) : cuts_.end();
    if (cut == cuts_.end()) {
      take(text, id);
      return;
    }
    write_text(text.substr(0, cut->second), take);
    write_text(text.substr(cut->second), take);
  }

  const ScoredPairModel& model_;
  std::string_view word_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::unordered_map<std::string_view, size_t> cuts_; // length of an unused piece's left part
};

} // namespace

void ScoredPairModel::encode(std::string_view word, std::vector<int32_t>& ret_ids) const {
  ScoredMerge merge(*this, word);
  merge.run();
  bool after_unknown = false;
  merge.write([&](std::string_view text, int32_t id) {
    if (id != kNoId) {
      ret_ids.push_back(id);
    } else if (byte_tokens) {
      (void)append_byte_tokens(*byte_tokens, text, ret_ids);
    } else if (!after_unknown && unknown != kNoId) {
      ret_ids.push_back(unknown);
    }
    after_unknown = id == kNoId;
  });
}

} // namespace mh::text
