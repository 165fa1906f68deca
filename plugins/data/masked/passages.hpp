#pragma once
/// Documents as sequences of tokens, and passages of them: of text files, whose lines are the
/// sequences, or of tokenised corpora (.bin and .idx), whose sequences may be sentences.

#include "../text/files.hpp"

#include <megahost/corpus.hpp>
#include <megahost/schema.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mh::masked {

struct PassagesConfig {
  std::vector<std::string> paths;
  std::vector<std::string> extensions = text::usual_extensions();
};

template <class C>
void passages_fields(Fields<C>& f) {
  f.add(
       "paths",
       &C::paths,
       "text files and folders, @torch-headers, or tokenised corpora of megahost data prepare by "
       "their names without .bin and .idx"
  )
      .path()
      .required();
  f.add("extensions", &C::extensions, "what to read of a folder, by the end of the name; {}: all");
}

/// Consecutive tokens, from token `first` of a sequence on, into those behind it.
struct Passage {
  uint64_t sequence = 0;
  uint32_t first = 0;
  uint32_t count = 0;
};

/// Tokens in memory or on disk.
///
/// Thread:  any
class PassageSource {
public:
  virtual ~PassageSource() = default;
  [[nodiscard]] virtual uint64_t sequences() const = 0;
  [[nodiscard]] virtual uint64_t documents() const = 0;
  [[nodiscard]] virtual uint64_t document_begin(uint64_t document) const = 0;
  [[nodiscard]] virtual uint64_t length(uint64_t sequence) const = 0;
  virtual void read(uint64_t sequence, uint64_t first, std::span<int64_t> ret_ids) const = 0;
  [[nodiscard]] virtual const std::string& name() const = 0;
};

/// The sources are split each by itself: first train, then valid, then test, where a document ends;
/// where there are few documents, where a sequence does. Files of text lie in the order of a hash
/// of their names.
class Passages {
public:
  /// Throws:  mh::Error (exit code 5) for files that are missing, damaged or cannot be read
  Passages(const PassagesConfig& config, const Corpus::Args& args);

  /// A split in passages of whole sequences, as many as `longest(number of the passage)` has room
  /// for; a sequence that is longer is cut. `across`: they are cut anywhere, go on over the ends of
  /// documents, and all are that long.
  [[nodiscard]] std::vector<Passage>
  cut(Split split, bool across, const std::function<uint64_t(uint64_t)>& longest) const;

  /// The ids of a passage; `ret_begins`, if not null, becomes the places in it where sequences
  /// begin, 0 not counted.
  ///
  /// Throws:  mh::Error (exit code 5) for an id outside the model's vocabulary
  [[nodiscard]] std::vector<int64_t>
  read(const Passage& passage, std::vector<size_t>* ret_begins = nullptr) const;

  /// Documents of the path of this number; nothing where some paths are texts.
  [[nodiscard]] std::optional<uint64_t> documents(size_t path) const;

  /// The number of a path, and of a document in it.
  struct PathDocument {
    size_t path;
    uint64_t document;
  };

  /// The document of a passage's first token, where all paths are tokenised corpora.
  [[nodiscard]] PathDocument document(const Passage& passage) const;

  /// "12 documents, 1,234 tokens"
  [[nodiscard]] std::string found() const;

private:
  struct Range {
    uint64_t first = 0, end = 0; // sequences
  };

  struct Place {
    size_t source;
    uint64_t sequence; // in it
  };

  [[nodiscard]] Place place(uint64_t sequence) const;

  [[nodiscard]] const PassageSource& source_of(const Place& place) const {
    return *sources_[place.source];
  }

  void share_out(const PassageSource& source, uint64_t begin);

  Corpus::Args args_;
  std::vector<std::unique_ptr<PassageSource>> sources_;
  bool texts_ = false;           // the last source is all texts
  std::vector<uint64_t> begins_; // the first sequence of each source, and the end
  std::array<std::vector<Range>, 3> ranges_;
};

/// Refuses a split without samples that was asked for.
[[noreturn]] void refuse_empty(Split split, const Corpus::Args& args, const std::string& found);

} // namespace mh::masked
