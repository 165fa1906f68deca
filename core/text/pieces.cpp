#include "core/text/pieces.hpp"

#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace mh::text {

namespace {

constexpr std::string_view kBlanks = " \t\r\n\v\f";

bool begins_with_letter(std::string_view line) {
  return character_length(line) > 0 && categories().in(decode_at(line.data()).code, kLetters);
}

bool begins_with_mark(std::string_view line) {
  return line[0] > ' ' && line[0] < '\x7F' && line[0] != '/';
}

/// Behind the last line end before which there is no blank and behind which a line begins so.
size_t last_line(std::string_view text, bool (*begins)(std::string_view line)) {
  for (size_t at = text.rfind('\n'); at != std::string_view::npos && at > 0;
       at = text.rfind('\n', at - 1)) {
    const std::string_view line = text.substr(at + 1);
    if (!line.empty() && kBlanks.find(text[at - 1]) == std::string_view::npos && begins(line)) {
      return at + 1;
    }
  }
  return std::string_view::npos;
}

} // namespace

size_t end_of_piece(std::string_view text) {
  const size_t end = last_line(text, begins_with_letter);
  return end != std::string_view::npos ? end : last_line(text, begins_with_mark);
}

size_t end_of_paragraph(std::string_view text) {
  const auto behind = [&](std::string_view lines) {
    const size_t at = text.rfind(lines);
    return at == std::string_view::npos ? 0 : at + lines.size();
  };
  const size_t end = std::max(behind("\n\n"), behind("\n\r\n"));
  return end == 0 ? std::string_view::npos : end;
}

namespace {

/// The tokens of a text that goes on.
std::vector<int32_t> tokens_before(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids = tokenizer.encode(text + "a");
  const std::vector<int32_t> others = tokenizer.encode(text + "b");
  const size_t most = std::max<size_t>(ids.size(), 1) - 1; // where "a" and "b" are both unknown
  const auto same = std::ranges::mismatch(ids, others).in1 - ids.begin();
  ids.resize(std::min(static_cast<size_t>(same), most));
  return ids;
}

} // namespace

PartEncoder::PartEncoder(
    const Tokenizer& tokenizer, std::string before, const std::string& end, std::string behind
)
    : tokenizer_(tokenizer)
    , before_(std::move(before))
    , behind_(std::move(behind)) {
  if (!before_.empty()) {
    head_ = tokens_before(tokenizer, before_);
  }
  if (!behind_.empty()) {
    tail_ = tokenizer.encode("a" + end + behind_);
    const size_t before_tail = tokens_before(tokenizer, "a" + end).size();
    tail_.erase(
        tail_.begin(), tail_.begin() + static_cast<ptrdiff_t>(std::min(before_tail, tail_.size()))
    );
  }
}

std::vector<int32_t> PartEncoder::encode(std::string_view part) const {
  std::vector<int32_t> ids = tokenizer_.encode(before_ + std::string(part) + behind_);
  const bool apart = head_.size() + tail_.size() <= ids.size() &&
                     std::equal(head_.begin(), head_.end(), ids.begin()) &&
                     std::equal(tail_.rbegin(), tail_.rend(), ids.rbegin());
  if (!apart) {
    return tokenizer_.encode(part);
  }
  ids.resize(ids.size() - tail_.size());
  ids.erase(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(head_.size()));
  return ids;
}

std::vector<int32_t>
encode_piece(const Tokenizer& tokenizer, std::string_view piece, bool begins, bool ends) {
  return begins && ends
             ? tokenizer.encode(piece)
             : PartEncoder(tokenizer, begins ? "" : "a\n", "\n", ends ? "" : "a").encode(piece);
}

} // namespace mh::text
