#include "core/text/unigram.hpp"

#include "core/text/utf8.hpp"
#include "core/text/vocabulary_file.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace mh::text {

namespace {

/// The last piece of the best way to a place.
template <class Sum>
struct BestPiece {
  Sum score = 0;
  int32_t id = kNoId; // kNoId: an unknown character
  uint32_t begin = UINT32_MAX;
};

/// In long texts sentencepiece subtracts the score of the place where it is from all that count
/// still, so that float32 keeps telling them apart.
constexpr float kMostScore = 100'000;

template <class Sum>
std::vector<BestPiece<Sum>> best_ways(const UnigramModel& model, std::string_view word) {
  std::vector<BestPiece<Sum>> nodes(word.size() + 1);
  size_t last = 0; // the furthest place that has a way
  for (size_t at = 0; at < word.size();) {
    const size_t length = first_length(word.substr(at));
    if (std::is_same_v<Sum, float> && std::abs(nodes[at].score) > kMostScore) {
      const Sum taken = nodes[at].score;
      for (size_t i = at; i <= last; ++i) {
        nodes[i].score -= i == at || nodes[i].begin != UINT32_MAX ? taken : 0;
      }
    }
    const Sum here = nodes[at].score;
    const auto offer = [&](size_t bytes, int32_t id, double score) {
      last = std::max(last, at + bytes);
      BestPiece<Sum>& node = nodes[at + bytes];
      const Sum sum = static_cast<Sum>(score) + here;
      if (node.begin == UINT32_MAX || sum > node.score) {
        node = {sum, id, static_cast<uint32_t>(at)};
      }
    };
    bool single = false; // whether the character is a piece
    model.pieces.for_each_prefix(word.substr(at), [&](size_t bytes, int32_t id) {
      offer(bytes, id, model.scores[static_cast<size_t>(id)]);
      single |= bytes == length;
    });
    if (!single) {
      offer(length, kNoId, model.unknown_score);
    }
    at += length;
  }
  return nodes;
}

struct UnigramPiece {
  int32_t id;
  size_t begin, end;
};

/// The best way from its end, runs of unknown characters as one part where they are fused.
template <class Sum>
std::vector<UnigramPiece> parts_of(const UnigramModel& model, std::string_view word) {
  const std::vector<BestPiece<Sum>> nodes = best_ways<Sum>(model, word);
  std::vector<UnigramPiece> parts;
  for (size_t end = word.size(); end > 0; end = parts.back().begin) {
    const BestPiece<Sum>& node = nodes[end];
    const int32_t id = node.id == model.unknown ? kNoId : node.id;
    if (id == kNoId && model.fuse_unknown && !parts.empty() && parts.back().id == kNoId) {
      parts.back().begin = node.begin;
    } else {
      parts.push_back({id, node.begin, end});
    }
  }
  std::ranges::reverse(parts);
  return parts;
}

} // namespace

void UnigramModel::encode(std::string_view word, std::vector<int32_t>& ret_ids) const {
  MH_ASSERT(word.size() < UINT32_MAX, "a word of 4 GB");
  const std::vector<UnigramPiece> parts = rule == UnigramRule::sentencepiece
                                              ? parts_of<float>(*this, word)
                                              : parts_of<double>(*this, word);
  for (const UnigramPiece& part : parts) {
    if (part.id != kNoId) {
      ret_ids.push_back(part.id);
      continue;
    }
    const std::string_view text = word.substr(part.begin, part.end - part.begin);
    if (byte_tokens && append_byte_tokens(*byte_tokens, text, ret_ids)) {
      continue;
    }
    if (unknown == kNoId) {
      refuse_word(text, "");
    }
    ret_ids.push_back(unknown);
  }
}

} // namespace mh::text
