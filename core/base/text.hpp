#pragma once
/// Small pieces of text that readers, writers and messages share.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mh {

/// The integer that `number` is, if it is one and fits.
[[nodiscard]] std::optional<int64_t> exact_integer(double number);

/// The shortest decimal text that reads back as the same number, always with a point or an
/// exponent: "0.95", "3e-4", "1.0", "inf", "nan".
[[nodiscard]] std::string number_text(double number);

/// A basic TOML (and JSON) string with its quotes; bytes that are no UTF-8 become U+FFFD.
[[nodiscard]] std::string string_text(std::string_view text);

/// The same as a Lua string, which has other escapes.
[[nodiscard]] std::string lua_string(std::string_view text);

/// A TOML key: bare where that is allowed, else quoted.
[[nodiscard]] std::string key_text(std::string_view key);

/// A dotted key at its first dot: "batch" and "global", "" and "precision".
[[nodiscard]] std::pair<std::string, std::string> split_key(const std::string& key);

/// `text` with each byte that is no part of valid UTF-8 replaced by U+FFFD.
[[nodiscard]] std::string valid_utf8(std::string_view text);

/// Bytes of `text` without a character at its end that is not whole yet.
[[nodiscard]] size_t whole_characters(std::string_view text);

/// Valid UTF-8 without control characters except line breaks and tabs, which become spaces: fit for
/// a terminal.
[[nodiscard]] std::string terminal_text(std::string_view text);

/// Edits (insert, delete, replace, swap neighbours) that turn `a` into `b`, capped at `limit + 1`.
[[nodiscard]] size_t edit_distance(std::string_view a, std::string_view b, size_t limit);

/// The word nearest to `word`, if one is near enough to be meant; of several, one that begins alike.
[[nodiscard]] std::optional<std::string>
nearest(std::string_view word, const std::vector<std::string>& words);

/// "a, b, c".
[[nodiscard]] std::string
join(const std::vector<std::string>& words, std::string_view between = ", ");

/// The word before `://` at the start of a path, "s3" of "s3://bucket/key"; nothing of a file's.
[[nodiscard]] std::optional<std::string_view> scheme_of(std::string_view path);

/// The word as a POSIX shell reads it back: in quotes where it needs them.
[[nodiscard]] std::string shell_word(const std::string& word);

/// "`a`, `b` or `c`".
[[nodiscard]] std::string alternatives(const std::vector<std::string>& words);

/// The text with spaces to `width` bytes, one at least.
[[nodiscard]] std::string padded(const std::string& text, size_t width);

} // namespace mh
