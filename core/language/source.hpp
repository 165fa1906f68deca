#pragma once
/// Recipe texts and places in them.

#include "megahost/value.hpp"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace mh {

using SourcePtr = std::shared_ptr<const Source>;

/// Reads a recipe file: at most 1 MiB of UTF-8 text without NUL.
///
/// Throws:  mh::Error if the file cannot be read or is no such text
[[nodiscard]] SourcePtr read_source(const std::filesystem::path& file, std::string layer);

/// Whether a run has left its recipe.toml and metrics.jsonl in a folder.
[[nodiscard]] bool is_run_folder(const std::filesystem::path& folder);

/// Throws mh::Error if `file` is a folder, with what can be done about it: a run's folder, one that
/// holds recipes, another one.
void refuse_folder(const std::filesystem::path& file);

/// Throws mh::Error unless the source's text is UTF-8 without NUL.
void check_text(const SourcePtr& source);

/// Turns offsets into lines and columns.
class LineIndex {
public:
  explicit LineIndex(SourcePtr source);

  /// The bytes [begin, end), cut at the end of begin's line.
  [[nodiscard]] Origin at(size_t begin, size_t end) const;
  /// The same from line and column, the column counted in characters.
  [[nodiscard]] Origin at_characters(int line, int column, int end_line, int end_column) const;
  /// A whole line, without its indentation.
  [[nodiscard]] Origin whole_line(int line) const;
  /// The last `token` on a line; the whole line if it is not there.
  [[nodiscard]] Origin last_on_line(int line, const std::string& token) const;

  [[nodiscard]] const SourcePtr& source() const { return source_; }

private:
  [[nodiscard]] size_t offset(int line, int column) const;

  SourcePtr source_;
  std::vector<size_t> starts_;
};

} // namespace mh
