#include "core/text/pieces.hpp"

#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

#include <algorithm>
#include <string>

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

std::vector<int32_t>
encode_piece(const Tokenizer& tokenizer, std::string_view piece, bool begins, bool ends) {
  if (begins && ends) {
    return tokenizer.encode(piece);
  }
  const std::vector<int32_t> lines = tokenizer.encode("a\na"), others = tokenizer.encode("a\nb");
  const size_t most = std::max<size_t>(lines.size(), 1) - 1; // where "a" and "b" are both unknown
  const size_t before = std::min<size_t>(
      static_cast<size_t>(std::ranges::mismatch(lines, others).in1 - lines.begin()), most
  );
  std::string text(begins ? "" : "a\n");
  text += piece;
  text += ends ? "" : "a";
  std::vector<int32_t> ids = tokenizer.encode(text);
  ids.resize(ids.size() - (ends ? 0 : std::min(ids.size(), lines.size() - before)));
  ids.erase(ids.begin(), ids.begin() + (begins ? 0 : std::min<long>(before, ids.size())));
  return ids;
}

} // namespace mh::text
