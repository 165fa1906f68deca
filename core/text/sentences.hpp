#pragma once
/// The ends of sentences, for samples that are made of sentences (BERT).

#include <string_view>
#include <vector>

namespace mh::text {

/// The sentences of a text, without the white space around them; together they are the text but
/// for white space.
///
/// A sentence ends at a blank line, and behind `.`, `!`, `?`, `…` or another script's full stop and
/// what closes quotes and brackets there, where white space follows and then no small letter;
/// `。`, `！` and `？` need no white space. The full stop of an initial ("J. Smith"), of a common
/// English abbreviation ("e.g.", "Dr.") and of a number that begins a line ("1. First") ends none.
/// The rule knows no language; other tools (nltk's punkt) decide some cases otherwise.
[[nodiscard]] std::vector<std::string_view> sentences(std::string_view text);

} // namespace mh::text
