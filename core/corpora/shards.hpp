#pragma once
/// The output of `data prepare` so far: the tokens in one file for each stream, the index in shards,
/// and a journal that names their input, so that a preparation that was interrupted continues where
/// it was.

#include "core/storage/documents.hpp"
#include "core/storage/file_lock.hpp"
#include "core/storage/indexed_writer.hpp"

#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mh {

class CorpusShards {
public:
  /// How far the input has been read.
  struct Done {
    DocumentPlace place{};
    uint64_t bytes = 0, documents = 0, tokens = 0;
    uint64_t skipped = 0, cut = 0; ///< documents, and files whose rest was skipped
    uint64_t broken = 0;           ///< documents taken whose bytes are no UTF-8
    bool left = false;             ///< the shards of other inputs were removed
  };

  /// streams:  what becomes a corpus of its own: OUTPUT_STREAM
  CorpusShards(std::string output, std::vector<std::string> streams, const TokenType& type);
  CorpusShards(const CorpusShards&) = delete;
  CorpusShards& operator=(const CorpusShards&) = delete;
  /// Without a shard nothing is left.
  ~CorpusShards();

  [[nodiscard]] std::string prefix(const std::string& stream) const;

  /// Tokens of a stream in all shards that were ended.
  [[nodiscard]] uint64_t tokens_of(const std::string& stream) const;

  /// Tells the options and the input that was read before a place from others.
  using Signature = std::function<std::string(const DocumentPlace& place)>;

  /// The shards that an earlier preparation with the same signature has made, or none: then the
  /// files that lie there are removed. Without a signature nothing is found again.
  ///
  /// Throws:  mh::Error if another process prepares this output
  [[nodiscard]] Done begin(Signature signature);

  /// Appends a document to each stream, or goes on with the last one.
  ///
  /// `Tokens` has `ids` and `lengths`, of its sequences.
  template <class Tokens>
  void add(const std::vector<Tokens>& document, bool begins) {
    open();
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (begins) {
        documents_[i].add(document[i].ids, document[i].lengths);
      } else {
        documents_[i].extend(document[i].ids);
      }
    }
  }

  /// Ends the shard: what it holds is done once it is on the disk, which another thread sees to; one
  /// shard is on its way at a time.
  ///
  /// Throws:  what went wrong with the shard before
  void end(const Done& done);

  /// Makes the corpora of the shards, and removes them.
  void publish();

private:
  void open();
  [[nodiscard]] bool goes_on(const std::vector<uint64_t>& sizes);
  void commit(
      const std::vector<IndexedDocuments>& documents,
      const std::vector<uint64_t>& sizes,
      uint64_t number,
      const Done& done
  ) const;
  [[nodiscard]] Path index(uint64_t number, const std::string& stream) const;
  [[nodiscard]] Path tokens(const std::string& stream) const;

  std::string output_;
  std::vector<std::string> streams_;
  TokenType type_;
  Path folder_;
  std::unique_ptr<FileLock> lock_; ///< lock of this output: one preparation at a time
  Signature signature_;
  uint64_t shards_ = 0;
  // The files of each stream: the tokens of all shards, how many bytes those of ended ones take,
  // and the documents of the shard that has begun.
  std::vector<std::unique_ptr<WriteFile>> bins_;
  std::vector<uint64_t> sizes_;
  std::vector<IndexedDocuments> documents_;
  std::future<void> commit_; // the last member: its thread uses the others
};

} // namespace mh
