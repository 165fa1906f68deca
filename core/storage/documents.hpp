#pragma once
/// Documents from JSON lines and text files, in blocks that several threads can work on.

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// A file of documents.
struct DocumentFile {
  std::string path; ///< "-": the standard input
  bool json_lines = false;
  uint64_t bytes = 0; ///< 0 if not known
};

enum class DocumentFormat : uint8_t { by_name, json_lines, text };

/// The files that the inputs name. Of a folder: all in it and below, in the order of their names,
/// but for those that begin with a dot.
///
/// Throws:  mh::Error (exit code 5) for what cannot be opened or is compressed, and if there is
/// none
[[nodiscard]] std::vector<DocumentFile>
find_documents(const std::vector<std::string>& inputs, DocumentFormat format);

/// Whole lines of a file of JSON lines, or a whole text file.
struct DocumentBlock {
  const DocumentFile* file = nullptr;
  uint64_t line = 1; ///< number of the first line
  std::string text;
};

/// Reads files one after the other.
class DocumentReader {
public:
  /// `files` outlive the reader.
  explicit DocumentReader(const std::vector<DocumentFile>& files, size_t block_bytes = 1 << 20);

  /// The next block; none at the end. Only JSON lines longer than a block make it longer.
  ///
  /// Throws:  mh::Error (exit code 5) if a file cannot be read
  [[nodiscard]] std::optional<DocumentBlock> next();

private:
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
  [[nodiscard]] bool open_next();
  /// Appends up to `bytes` bytes of the file; false at its end.
  [[nodiscard]] bool read_more(size_t bytes, std::string& ret_text);

  const std::vector<DocumentFile>& files_;
  size_t block_bytes_;
  size_t number_ = 0; // of the next file
  File open_;
  std::string rest_; // of the block before: a line that has not ended
  uint64_t line_ = 1;
};

/// The texts of one document by key: a text is one sequence, a list of texts several.
using DocumentTexts = std::vector<std::vector<std::string>>;

/// Calls `take` for each document of a block; blank lines are none. Where a document cannot be
/// read, or `take` throws mh::Error, `skip` is called with the sentence, if it is given. A text
/// file has the key "text" only.
///
/// Throws:  mh::Error (exit code 5) "FILE:LINE: ..." if there is no `skip`
void parse_documents(
    const DocumentBlock& block,
    const std::vector<std::string>& keys,
    const std::function<void(DocumentTexts)>& take,
    const std::function<void(std::string)>& skip
);

} // namespace mh
