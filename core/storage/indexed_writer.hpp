#pragma once
/// Writes a tokenised corpus in Megatron's format, byte for byte as its `IndexedDatasetBuilder`.

#include "core/formats/indexed.hpp"
#include "core/storage/file_system.hpp"

#include <memory>
#include <string>
#include <vector>

namespace mh {

/// Documents one after the other: their tokens go to a file, what an index says of them is held.
class IndexedDocuments {
public:
  /// bin:     gets the tokens; it outlives the object
  /// prefix:  that of the corpus, for messages
  IndexedDocuments(WriteFile& bin, Path bin_path, std::string prefix, const TokenType& type);

  /// Appends one document: the tokens of its sequences one after the other. A document without
  /// sequences counts too.
  ///
  /// Throws:  mh::Error (exit code 5) for an id that the type cannot hold, or a sequence longer
  ///          than 2^31 - 1 tokens
  void add(std::span<const int32_t> ids, std::span<const size_t> sequence_lengths);

  /// Appends tokens to the last sequence of the last document, or to a first one of it.
  void extend(std::span<const int32_t> ids);

  /// Writes the tokens that are held still.
  void flush();

  /// Writes and syncs a new file with the index of these documents.
  void write_index(FileSystem& files, const Path& index) const;

  [[nodiscard]] uint64_t documents() const { return starts_.size() - 1; }

  [[nodiscard]] uint64_t tokens() const { return tokens_; }

private:
  void append(std::span<const int32_t> ids);
  [[nodiscard]] int32_t checked_length(size_t length) const;

  WriteFile& bin_;
  Path bin_path_;
  std::string prefix_;
  TokenType type_;
  std::vector<std::byte> waiting_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> starts_{0};
  uint64_t tokens_ = 0;
};

/// The files are written next to their names and renamed by `commit`: PREFIX.bin first, PREFIX.idx
/// last, so that a reader that finds an index finds the file that it describes. Without `commit`
/// nothing is left.
class IndexedWriter {
public:
  /// Throws:  StorageError if the files cannot be made
  IndexedWriter(FileSystem& files, std::string prefix, const TokenType& type);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;

  /// The same as `IndexedDocuments::add`.
  void add_document(std::span<const int32_t> ids, std::span<const size_t> sequence_lengths) {
    documents_.add(ids, sequence_lengths);
  }

  /// The same as `IndexedDocuments::extend`.
  void extend_document(std::span<const int32_t> ids) { documents_.extend(ids); }

  /// Syncs both files and gives them their names; replaces what had them.
  void commit();

  [[nodiscard]] uint64_t documents() const { return documents_.documents(); }

  [[nodiscard]] uint64_t tokens() const { return documents_.tokens(); }

private:
  FileSystem& files_;
  std::string prefix_;
  std::unique_ptr<WriteFile> bin_;
  IndexedDocuments documents_;
};

/// Gives the files of a corpus that were written and synced their names; replaces what had them.
void publish_indexed(
    FileSystem& files, const Path& bin, const Path& index, const std::string& prefix
);

/// Writes and syncs the index of several corpora whose tokens lie one after the other.
///
/// indexes:  those of the corpora
/// output:   the new file
/// Returns:  bytes of all tokens
/// Throws:   mh::Error (exit code 5) if an index cannot be read, or they differ in their token types
uint64_t
merge_indexes(FileSystem& files, const std::vector<std::string>& indexes, const Path& output);

/// The documents of several corpora one after the other, as one corpus. Nothing but a few MiB is
/// held in memory.
///
/// Throws:  mh::Error (exit code 5) if a corpus cannot be read, or they differ in their token types
void merge_indexed(
    FileSystem& files, const std::vector<std::string>& prefixes, const std::string& output
);

} // namespace mh
