#include "bpe.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <functional>

namespace mh::gpt2 {
namespace {

constexpr size_t kLongestRemembered = 64;
constexpr size_t kMostRemembered = 1 << 17;

} // namespace

void WordEncoder::offer(int32_t left) {
  const Symbol& symbol = symbols_[static_cast<size_t>(left)];
  if (symbol.after == Vocabulary::kNone) {
    return;
  }
  const int32_t right = symbols_[static_cast<size_t>(symbol.after)].id;
  const auto found = vocabulary_.merges.find(Vocabulary::pair(symbol.id, right));
  if (found != vocabulary_.merges.end()) {
    heap_.push_back(Vocabulary::pair(found->second.rank, left));
    std::ranges::push_heap(heap_, std::greater());
  }
}

void WordEncoder::merge(std::string_view word) {
  MH_ASSERT(word.size() < INT32_MAX, "a word of 2 GB");
  const auto count = static_cast<int32_t>(word.size());
  symbols_.clear();
  heap_.clear();
  for (int32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<size_t>(i)]);
    symbols_.push_back({vocabulary_.bytes[byte], i - 1, i + 1 < count ? i + 1 : Vocabulary::kNone});
  }
  for (int32_t i = 0; i < count; ++i) {
    offer(i);
  }
  while (!heap_.empty()) {
    std::ranges::pop_heap(heap_, std::greater());
    const auto rank = static_cast<int32_t>(heap_.back() >> 32);
    const auto place = static_cast<int32_t>(heap_.back() & 0xFFFFFFFF);
    heap_.pop_back();
    Symbol& left = symbols_[static_cast<size_t>(place)];
    if (left.id == Vocabulary::kNone || left.after == Vocabulary::kNone) {
      continue; // merged away meanwhile
    }
    Symbol& right = symbols_[static_cast<size_t>(left.after)];
    const auto found = vocabulary_.merges.find(Vocabulary::pair(left.id, right.id));
    if (found == vocabulary_.merges.end() || found->second.rank != rank) {
      continue; // another pair meanwhile
    }
    left.id = found->second.id;
    left.after = right.after;
    right.id = Vocabulary::kNone;
    if (left.after != Vocabulary::kNone) {
      symbols_[static_cast<size_t>(left.after)].before = place;
    }
    offer(place);
    if (left.before != Vocabulary::kNone) {
      offer(left.before);
    }
  }
}

void WordEncoder::encode(std::string_view word, std::vector<int32_t>& ret_ids) {
  const auto found = remembered_.find(word);
  if (found != remembered_.end()) {
    ret_ids.insert(ret_ids.end(), found->second.begin(), found->second.end());
    return;
  }
  merge(word);
  const size_t before = ret_ids.size();
  for (const Symbol& symbol : symbols_) {
    if (symbol.id != Vocabulary::kNone) {
      ret_ids.push_back(symbol.id);
    }
  }
  if (word.size() <= kLongestRemembered) {
    if (remembered_.size() >= kMostRemembered) {
      remembered_.clear();
    }
    remembered_.emplace(
        word, std::vector<int32_t>(ret_ids.begin() + static_cast<ptrdiff_t>(before), ret_ids.end())
    );
  }
}

} // namespace mh::gpt2
