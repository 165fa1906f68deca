#pragma once
/// Any text files as a corpus, tokenised when the run starts.

#include "documents.hpp"
#include "files.hpp"

#include <megahost/corpus.hpp>
#include <megahost/error.hpp>
#include <megahost/schema.hpp>

#include <array>

namespace mh::text {

/// Text files, one after the other, cut into sequences.
///
/// A document is a file; a file longer than 1/256 of the corpus counts as several. Whole documents
/// are assigned to train, valid and test in an order that depends on their names only, so that each
/// split is a fair sample of the whole and no validation sequence goes on where a training sequence
/// ends (see `split_documents`). Copies of the same text under two names may still fall into two
/// splits.
///
/// Sample k of a split is its tokens k * seq_length to (k + 1) * seq_length and, as the last label,
/// one more. Every epoch has an order of its own: for train one that depends on the seed, for valid
/// and test always the same.
class TextCorpus final : public Corpus {
public:
  struct Config {
    std::vector<std::string> paths;
    std::vector<std::string> extensions = usual_extensions();
    bool eod = true;
  };

  static void fields(Fields<Config>& fields);

  /// Finds, reads and tokenises all files; for `Args::samples` no more than they need.
  ///
  /// Throws:  mh::Error (exit code 5) for files that are missing or cannot be read, ids outside the
  ///          vocabulary, and a training split with less than one sequence; another split with less
  ///          has no samples, and `sample` says why
  TextCorpus(const Config& config, const Args& args);

  [[nodiscard]] int64_t size(Split split) const override;
  [[nodiscard]] Sample sample(Split split, int64_t index) const override;
  [[nodiscard]] std::string summary() const override;

private:
  std::vector<Document> tokenise(const Config& config);
  /// The ids of a file's beginning, if that has as many tokens as wanted.
  std::vector<int32_t> ids_of(const TextFile& file, uint64_t wanted);
  void share_out(const std::vector<Document>& documents);
  [[nodiscard]] std::array<uint64_t, 3> sizes() const; // tokens
  [[nodiscard]] std::string found() const;             // "3 files with 812 tokens"
  /// The error of a split whose share is less than one sequence.
  [[nodiscard]] Error too_short(Split split) const;

  Args args_;
  TokenStore tokens_;
  std::array<SplitText, 3> slices_;
  uint64_t files_ = 0;
  uint64_t bytes_ = 0;
};

} // namespace mh::text
