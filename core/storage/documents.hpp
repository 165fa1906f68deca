#pragma once
/// Documents from JSON lines and text files, in blocks that several threads can work on.

#include "core/storage/input.hpp"
#include "core/text/pieces.hpp"

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

enum class DocumentFormat : uint8_t { by_name, json_lines, text };

/// A file of documents.
struct DocumentFile {
  std::string path; ///< "-": the standard input
  bool json_lines = false;
  uint64_t bytes = 0; ///< 0 if not known
  std::string name{}; ///< for messages: where it lies in a store; empty: `path`
};

/// The file as messages name it.
[[nodiscard]] std::string name_of(const DocumentFile& file);

/// The files that the inputs name. A folder stands for all files in it and below, in the order of
/// their names, except those that begin with a dot. `*`, `?` and `[...]` mean what they mean in
/// shells, and "@FILE" the inputs that a file lists, one a line. A path in a store stands for the
/// copy that `here` makes of it on this machine.
///
/// Throws:  mh::Error (exit code 5) for what cannot be opened, and if there is none
[[nodiscard]] std::vector<DocumentFile> find_documents(
    const std::vector<std::string>& inputs,
    DocumentFormat format,
    const std::function<std::filesystem::path(const std::string&)>& here = {}
);

/// Whole lines of a file of JSON lines, or a text file; one that is long comes in several pieces.
struct DocumentBlock {
  const DocumentFile* file = nullptr;
  uint64_t line = 1;   ///< number of the first line
  uint64_t offset = 0; ///< bytes of the file before it, decompressed
  std::string text;
  bool begins = true, ends = true; ///< a document, where the text is a piece of one
};

/// The place where reading continues: behind a block.
struct DocumentPlace {
  uint64_t file = 0;
  uint64_t offset = 0; ///< bytes of the file, decompressed
  uint64_t line = 1;
  bool within = false; ///< a document has begun
};

/// How a long text file is cut.
struct DocumentPieces {
  /// Length of a piece, about.
  size_t bytes = 8 << 20;
  /// The place where a piece of a text may end, or `npos`.
  size_t (*end)(std::string_view text) = text::end_of_piece;
};

/// Reads files one after the other.
class DocumentReader {
public:
  /// `files` outlive the reader.
  explicit DocumentReader(
      const std::vector<DocumentFile>& files,
      OpenInput open = open_file_input,
      DocumentPieces pieces = {},
      size_t block_bytes = 1 << 20
  );

  /// Goes on from a place.
  void seek(const DocumentPlace& place);

  /// The next block; none at the end. Only JSON lines longer than a block make it longer. A text
  /// file is read in pieces; where there is no place to cut, a piece is longer.
  ///
  /// Throws:  mh::Error (exit code 5) if a file cannot be read further, after the lines before
  ///          that; the next call goes on with the next file
  [[nodiscard]] std::optional<DocumentBlock> next();

  /// Behind the last block; where that was cut short by a failure, before what cannot be read.
  [[nodiscard]] const DocumentPlace& place() const { return place_; }

private:
  void open_next();
  void close();
  /// Appends up to `bytes` bytes of the file; false at its end.
  [[nodiscard]] bool read_more(size_t bytes, std::string& ret_text);

  const std::vector<DocumentFile>& files_;
  OpenInput open_;
  size_t block_bytes_;
  DocumentPieces pieces_;
  DocumentPlace place_;
  std::unique_ptr<InputStream> input_;
  std::string rest_;           // rest of the block before: a line that has not ended
  std::exception_ptr failure_; // error of the file before, thrown once its last lines are given
};

/// The type of a document's members: texts, or lists of a conversation's messages, objects of
/// "role" and "content".
enum class DocumentMembers : uint8_t { texts, messages };

/// The texts of one document by key: a text is one sequence, a list of texts several; of messages
/// role and content in turn.
using DocumentTexts = std::vector<std::vector<std::string>>;

/// The treatment of a document that cannot be read as it is; each function is given the sentence.
struct DocumentFaults {
  std::function<void(std::string)> skip{};    ///< leaves it out; none: it is refused
  std::function<void(std::string)> replace{}; ///< takes it with U+FFFD for bytes that are no UTF-8;
                                              ///< none: that is a fault as others in JSON lines
  std::function<void(std::string)> keep{};    ///< takes a text file with such bytes as it is
};

/// Calls `take` for each document of a block; blank lines are none. A document that cannot be read,
/// or for which `take` throws mh::Error, is at fault. JSON lines must be UTF-8; text files may hold
/// any bytes. A text file has the key "text" only.
///
/// Throws:  mh::Error (exit code 5) "FILE:LINE: ..." for a fault that is not skipped or replaced
void parse_documents(
    const DocumentBlock& block,
    const std::vector<std::string>& keys,
    const std::function<void(DocumentTexts)>& take,
    const DocumentFaults& faults = {},
    DocumentMembers members = DocumentMembers::texts
);

} // namespace mh
